# The compiler settings of all targets.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

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
  if(CMAKE_BUILD_TYPE STREQUAL Release AND sources)
    set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS -Os)
  endif()
endfunction()

# A failed check prints the path of a file within the source folder, wherever that folder was during the build.
add_compile_options(-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)

# These options let the linker drop functions that a program does not use.
add_compile_options(-ffunction-sections -fdata-sections)

add_library(miniray_settings INTERFACE)
target_compile_options(miniray_settings INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC 12 warns of overlaps in std::string's operator+ that do not exist (GCC bug 105651).
  target_compile_options(miniray_settings INTERFACE -Wno-restrict)
endif()
if(MINIRAY_SANITIZE)
  add_compile_options(-fsanitize=${MINIRAY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${MINIRAY_SANITIZE})
endif()

# These are header-only. Only the implementation uses them; no installed header includes them.
find_package(nlohmann_json 3.11 REQUIRED)
find_path(MSGPACK_INCLUDE msgpack.hpp REQUIRED)

# HMAC and SHA-256. The library is linked statically.
find_path(BEARSSL_INCLUDE bearssl.h REQUIRED)
find_library(BEARSSL_LIBRARY libbearssl.a REQUIRED)
# Only the types of hwloc are needed here. The library is loaded when a program asks for the CPUs of the machine.
find_path(HWLOC_INCLUDE hwloc.h REQUIRED)
