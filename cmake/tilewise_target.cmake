# What every target of the project is compiled with, and how its sources are found.

# Sources below a folder, found again whenever one is added.
macro(tilewise_glob out)
  file(GLOB ${out} CONFIGURE_DEPENDS LIST_DIRECTORIES false RELATIVE "${PROJECT_SOURCE_DIR}"
       ${ARGN})
endmacro()

# Include folders of everything that is not a user of the library.
add_library(tilewise_headers INTERFACE)
target_include_directories(tilewise_headers INTERFACE
  "${PROJECT_SOURCE_DIR}/include"
  "${PROJECT_BINARY_DIR}/include"
  "${PROJECT_SOURCE_DIR}/src"
  "${PROJECT_SOURCE_DIR}")
target_compile_features(tilewise_headers INTERFACE cxx_std_20)

function(tilewise_compiled target)
  target_link_libraries(${target} PRIVATE tilewise_headers)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow)
  if(TILEWISE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

# Half of the time to compile our small files goes into the same few headers. Every file still
# includes what it needs: ./dev lint compiles without this.
function(tilewise_precompiled target)
  if(PROJECT_IS_TOP_LEVEL)
    if(ARGV1 STREQUAL "REUSE_FROM")  # the same options, hence the same file
      target_precompile_headers(${target} REUSE_FROM ${ARGV2})
    else()
      target_precompile_headers(${target} PRIVATE
        <algorithm> <array> <cmath> <cstdint> <cstring> <functional> <memory> <optional> <span>
        <stdexcept> <string> <string_view> <vector> ${ARGN})
    endif()
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # False alarms inside std::string, which GCC 12 cannot keep to itself in precompiled headers.
      target_compile_options(${target} PRIVATE
        -Wno-array-bounds -Wno-stringop-overread -Wno-stringop-overflow -Wno-restrict)
    endif()
  endif()
endfunction()
