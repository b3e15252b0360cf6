// The commands of the program. Each takes the arguments after its name and returns the exit code;
// errors are thrown and end in main().
#pragma once

namespace miles {

int train_command(int argc, const char* const* argv);
int generate_command(int argc, const char* const* argv);
int eval_command(int argc, const char* const* argv);
int report_command(int argc, const char* const* argv);
int inspect_command(int argc, const char* const* argv);

}  // namespace miles
