# The compiler settings of all targets. A parent project keeps its own: what is set here holds in this folder alone.
if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
  endif()
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  find_program(MINIRAY_CCACHE ccache)
  if(MINIRAY_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${MINIRAY_CCACHE})
  endif()
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Public headers mark what a shared library exports; the rest is hidden.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

# Several sources are compiled as one (a "unity build"). This takes less than half of the time and makes smaller code.
# Turn it off while you edit one file for long.
option(MINIRAY_UNITY "Compile several sources at a time" ON)
set(CMAKE_UNITY_BUILD ${MINIRAY_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)

# Adds sources that a release build optimises for size. CMake does not put sources with options of their own into its
# units, so this function makes a unit for them.
function(miniray_add_small_sources target)
  set(sources ${ARGN})
  if(MINIRAY_UNITY AND sources)
    list(TRANSFORM sources REPLACE "(.+)" "#include \"\\1\"  // NOLINT(bugprone-suspicious-include)\n" OUTPUT_VARIABLE text)
    list(JOIN text "" text)
    set(sources ${CMAKE_CURRENT_BINARY_DIR}/${target}_small.cpp)
    file(CONFIGURE OUTPUT ${sources} CONTENT "${text}")
  endif()
  target_sources(${target} PRIVATE ${sources})
  if(sources)
    set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-Os>)
  endif()
endfunction()

# A failed check prints the path of a file within the source folder, wherever that folder was during the build. A release
# has no path of the build machine at all; in other builds, debuggers find the sources by their paths.
set(miniray_maps ${PROJECT_BINARY_DIR}/=build/ ${PROJECT_SOURCE_DIR}/=)
foreach(map IN LISTS miniray_maps)
  add_compile_options($<IF:$<CONFIG:Release>,-ffile-prefix-map=${map},-fmacro-prefix-map=${map}>)
endforeach()

# These options let the linker drop functions that a program does not use.
add_compile_options(-ffunction-sections -fdata-sections)

add_library(miniray_settings INTERFACE)
if(MINIRAY_WERROR)
  target_compile_options(miniray_settings INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # GCC 12 warns of overlaps in std::string's operator+ that do not exist (GCC bug 105651).
    target_compile_options(miniray_settings INTERFACE -Wno-restrict)
  endif()
endif()
if(MINIRAY_SANITIZE)
  add_compile_options(-fsanitize=${MINIRAY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${MINIRAY_SANITIZE})
endif()
