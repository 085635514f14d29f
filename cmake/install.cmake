# Headers, library, the CMake package and the pkg-config file. `cmake --install` needs the library
# only; the program goes along when it was built.
include(CMakePackageConfigHelpers)

install(TARGETS tilewise_library EXPORT tilewise
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library)
install(FILES include/tilewise/tilewise.h include/tilewise/tilewise.hpp include/tilewise/cost.hpp
              "${PROJECT_BINARY_DIR}/include/tilewise/version.h"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/tilewise" COMPONENT library)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tilewise")
install(EXPORT tilewise NAMESPACE tilewise:: FILE tilewise-targets.cmake
        DESTINATION "${package_dir}" COMPONENT library)
configure_package_config_file(cmake/tilewise-config.cmake.in
  "${PROJECT_BINARY_DIR}/cmake/tilewise-config.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cmake/tilewise-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/cmake/tilewise-config.cmake"
              "${PROJECT_BINARY_DIR}/cmake/tilewise-config-version.cmake"
        DESTINATION "${package_dir}" COMPONENT library)

# Relocatable: the prefix is found from where the .pc file lies.
file(RELATIVE_PATH prefix_from_pc "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")
configure_file(cmake/tilewise.pc.in "${PROJECT_BINARY_DIR}/cmake/tilewise.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/cmake/tilewise.pc"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT library)

if(TARGET tilewise_cli)
  install(TARGETS tilewise_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT program)
endif()
