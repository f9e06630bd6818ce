# After `cmake --install`, another project finds the library with find_package(miniray).
include(CMakePackageConfigHelpers)
install(TARGETS miniray EXPORT miniray-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(DIRECTORY include/miniray ${PROJECT_BINARY_DIR}/include/miniray DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT development FILES_MATCHING PATTERN "*.hpp")
install(EXPORT miniray-targets NAMESPACE miniray:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/miniray
        FILE miniray-config.cmake COMPONENT development)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/miniray-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/miniray-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/miniray COMPONENT development)
