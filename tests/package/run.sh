#!/bin/sh
# The library as its users meet it: installed and moved elsewhere, found by find_package and by
# pkg-config, and inside another project by add_subdirectory.
#   run.sh SOURCE BUILD CMAKE      (called by ctest; BUILD holds a finished build)
set -u
source=$1
build=$2
cmake=$3
work=$build/package-test
case $work in */package-test) rm -rf "$work" ;; esac
mkdir -p "$work"
passed=0
failed=0

# check NAME COMMAND...: runs it, shows its output when it fails.
check() {
  name=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    passed=$((passed + 1))
    echo "ok      $name"
  else
    failed=$((failed + 1))
    echo "FAILED  $name"
    sed 's/^/        /' "$work/log"
  fi
}

install_and_move() {
  "$cmake" --install "$build" --prefix "$work/first" --component library &&
    mv "$work/first" "$prefix"
}
find_library_file() { find "$prefix" -name 'libtilewise.so.*.*.*' -type f; }

# --- the installed library ---
names_no_build_path() {
  ! grep -rlE "$source|$build" "$prefix" --include='*.cmake' --include='*.pc'
}
size_is_small() {
  strip -o "$work/stripped.so" "$library" && bytes=$(wc -c <"$work/stripped.so") &&
    echo "$bytes bytes" && [ "$bytes" -lt 2000000 ]
}
shows_its_api_only() {
  nm -D --defined-only "$library" | cut -d' ' -f3- | c++filt >"$work/symbols"
  grep -q '^tw_forward$' "$work/symbols" && grep -q '^tilewise::forward(' "$work/symbols" &&
    ! grep -vE '^(tw_|tilewise::|(vtable|typeinfo|typeinfo name) for tilewise::)' "$work/symbols"
}
needs_the_standard_library_only() {
  readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' >"$work/needed"
  allowed='^(libstdc\+\+|libm|libgcc_s|libc|libpthread|libdl|ld-linux[^.]*)\.so'
  ! grep -vE "$allowed" "$work/needed" &&
    ! ldd "$library" | grep 'not found'
}

# --- users of the installed library ---
# builds_by_find_package PREFIX FOLDER
builds_by_find_package() {
  "$cmake" -S "$source/examples" -B "$2" -DCMAKE_PREFIX_PATH="$1" && "$cmake" --build "$2"
}
refuses_another_minor() {
  mkdir -p "$work/minor"
  printf 'cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\n%s\n' \
    'find_package(tilewise 0.2 CONFIG REQUIRED)' >"$work/minor/CMakeLists.txt"
  ! "$cmake" -S "$work/minor" -B "$work/minor/build" -DCMAKE_PREFIX_PATH="$prefix"
}
# by_pkg_config COMPILER FLAGS FILE: compiles and runs it.
by_pkg_config() {
  pc=$(dirname "$(find "$prefix" -name tilewise.pc)")
  # shellcheck disable=SC2046
  "$1" "$2" "$3" -o "$work/by_pkg_config" \
    $(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs tilewise) -lm &&
    LD_LIBRARY_PATH=$(dirname "$library") "$work/by_pkg_config"
}

# --- inside another project ---
write_parent() {
  mkdir -p "$work/parent"
  cat >"$work/parent/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(parent LANGUAGES CXX)
function(settings out)
  set(text "")
  get_cmake_property(names VARIABLES)
  list(FILTER names INCLUDE REGEX
    "^(BUILD_SHARED_LIBS|CMAKE_(CXX|C|EXE|SHARED|RUNTIME|LIBRARY|BUILD|EXPORT|POSITION)_.*)")
  foreach(name IN LISTS names)
    string(APPEND text "\${name}=\${\${name}}\n")
  endforeach()
  foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS INCLUDE_DIRECTORIES LINK_OPTIONS
                   LINK_LIBRARIES TESTS)
    get_directory_property(value \${property})
    string(APPEND text "\${property}=\${value}\n")
  endforeach()
  set(\${out} "\${text}" PARENT_SCOPE)
endfunction()
settings(before)
add_subdirectory("$source" tilewise)
settings(after)
if(NOT before STREQUAL after)
  message(FATAL_ERROR "add_subdirectory changed the parent:\nbefore\n\${before}\nafter\n\${after}")
endif()
foreach(target tilewise_cli api_test)
  if(TARGET \${target})
    message(FATAL_ERROR "\${target} was added to the parent")
  endif()
endforeach()
add_executable(app "$source/examples/attention.cpp")
target_link_libraries(app PRIVATE tilewise::tilewise)
END
}
configures_in_a_parent() {
  write_parent &&
    "$cmake" -S "$work/parent" -B "$work/parent/build" -G Ninja -DTILEWISE_INSTALL=ON
}

# --- the static library, which is what a parent builds unless it says otherwise ---
installs_static() {
  "$cmake" --install "$work/parent/build" --prefix "$work/static" --component library &&
    find "$work/static" -name libtilewise.a | grep . &&
    ! find "$work/static" -name '*.so*' | grep .
}
static_by_pkg_config() {
  pc=$(dirname "$(find "$work/static" -name tilewise.pc)")
  # shellcheck disable=SC2046
  cc -std=c11 "$source/examples/attention.c" -o "$work/static_by_pkg_config" \
    $(PKG_CONFIG_PATH=$pc pkg-config --static --cflags --libs tilewise) &&
    "$work/static_by_pkg_config"
}

prefix=$work/moved
check "installs" install_and_move
library=$(find_library_file)
check "the package does not name the place it was built in" names_no_build_path
check "the library is under 2 MB" size_is_small
check "the library shows tw_* and tilewise:: only" shows_its_api_only
check "the library needs the standard library only" needs_the_standard_library_only
check "find_package: the examples build" builds_by_find_package "$prefix" "$work/examples"
check "find_package: attention.c runs" "$work/examples/attention_c"
check "find_package: attention.cpp runs" "$work/examples/attention_cpp"
check "find_package: another minor version is refused" refuses_another_minor
check "pkg-config: attention.c builds and runs" by_pkg_config cc -std=c11 \
  "$source/examples/attention.c"
check "pkg-config: attention.cpp builds and runs" by_pkg_config c++ -std=c++20 \
  "$source/examples/attention.cpp"
check "add_subdirectory: leaves the parent as it is" configures_in_a_parent
check "add_subdirectory: builds" "$cmake" --build "$work/parent/build"
check "add_subdirectory: runs" "$work/parent/build/app"
check "static: installs" installs_static
check "static: the examples build by find_package" builds_by_find_package "$work/static" \
  "$work/static_examples"
check "static: attention.c runs" "$work/static_examples/attention_c"
check "static: attention.c builds and runs by pkg-config --static" static_by_pkg_config
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
