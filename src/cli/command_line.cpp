#include "cli/command_line.h"

#include <iostream>

namespace miles {

CommandLine::CommandLine(const std::string& command, const std::string& description)
    : app_(description, "miles " + command), command_(command) {
  app_.set_config("--config", "", "TOML file with flags (names without dashes); flags given here win")
      ->configurable(false);
  app_.allow_config_extras(CLI::config_extras_mode::error);
  app_.get_formatter()->column_width(44);
  app_.set_help_flag("-h,--help", "Show this and exit")->configurable(false);
}

CLI::Option* CommandLine::bytes(const std::string& flag, std::optional<int64_t>& to,
                                const std::string& description) {
  return app_
      .add_option_function<std::string>(
          flag, [&to, flag](const std::string& text) { to = parse_bytes(text, flag); }, description)
      ->type_name("BYTES");
}

bool CommandLine::parse(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  std::reverse(arguments.begin(), arguments.end());
  try {
    app_.parse(arguments);
  } catch (const CLI::CallForHelp& request) {
    app_.exit(request, std::cout, std::cerr);
    return false;
  } catch (const CLI::FileError& error) {
    fail(ErrorCode::data, "--config: {}", error.what());
  } catch (const CLI::ParseError& error) {
    fail(ErrorCode::flags, "{}; see miles {} --help", error.what(), command_);
  }
  return true;
}

void CommandLine::resolve(const std::string& flag, const std::string& value) {
  CLI::Option* option = app_.get_option(flag);
  option->clear();
  option->add_result(value);
}

std::string CommandLine::to_toml() const { return app_.config_to_str(true, false); }

}  // namespace miles
