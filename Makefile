# Two commands do all the work on a fresh Debian 12 machine (root or sudo, apt only):
#   make demo    installs, builds, trains a small model, shows what happened
#   make test    installs, builds, runs the tests
PACKAGES := g++ cmake ninja-build ccache pkg-config libcli11-dev nlohmann-json3-dev libfmt-dev libspdlog-dev \
            libdnnl-dev libpcre2-dev libutf8proc-dev libxxhash-dev libgtest-dev
BUILD := build/release
APT := $(if $(filter 0,$(shell id -u)),,sudo) env DEBIAN_FRONTEND=noninteractive apt-get

.PHONY: demo test build build-tests deps clean format

demo: build
	scripts/demo.sh $(BUILD)/miles

test: build-tests
	ctest --test-dir $(BUILD) --output-on-failure

build: deps
	cmake --preset release -DBUILD_TESTING=OFF >/dev/null
	cmake --build $(BUILD) --target miles

build-tests: deps
	cmake --preset release -DBUILD_TESTING=ON >/dev/null
	cmake --build $(BUILD)

# Asks apt only when something is missing.
deps:
	@[ "$$(dpkg-query -W -f '$${db:Status-Status}\n' $(PACKAGES) 2>/dev/null | grep -cx installed)" = $(words $(PACKAGES)) ] || \
	 { $(APT) update -qq && $(APT) install -y -qq --no-install-recommends $(PACKAGES); }

format:
	git ls-files 'src/*.h' 'src/*.cpp' 'tests/*.h' 'tests/*.cpp' 'bench/*.h' 'bench/*.cpp' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	rm -rf build
