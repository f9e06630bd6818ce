# After `cmake --install`, another project finds the library with find_package(miniray) or pkg-config. Nothing installed
# names a path of this machine, so the folder can be moved.
include(CMakePackageConfigHelpers)
set(miniray_cmake_folder ${CMAKE_INSTALL_LIBDIR}/cmake/miniray)
install(TARGETS miniray EXPORT miniray-targets COMPONENT development ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/miniray ${PROJECT_BINARY_DIR}/include/miniray DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT development FILES_MATCHING PATTERN "*.hpp")
install(EXPORT miniray-targets NAMESPACE miniray:: DESTINATION ${miniray_cmake_folder} COMPONENT development)

configure_package_config_file(cmake/miniray-config.cmake.in ${PROJECT_BINARY_DIR}/miniray-config.cmake
                              INSTALL_DESTINATION ${miniray_cmake_folder} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/miniray-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/miniray-config.cmake ${PROJECT_BINARY_DIR}/miniray-config-version.cmake
        DESTINATION ${miniray_cmake_folder} COMPONENT development)

# pkg-config finds the prefix from where the file is.
file(RELATIVE_PATH miniray_prefix_from_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/miniray.pc.in ${PROJECT_BINARY_DIR}/miniray.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/miniray.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
