# What the implementation is built with. No installed header includes any of it.

# These are header-only.
if(NOT TARGET nlohmann_json::nlohmann_json)
  find_package(nlohmann_json 3.11 REQUIRED)
endif()
find_path(MINIRAY_MSGPACK_INCLUDE msgpack.hpp REQUIRED)
# Only the types of hwloc are needed here. The library is loaded when a program asks for the CPUs of the machine.
find_path(MINIRAY_HWLOC_INCLUDE hwloc.h REQUIRED)

find_package(Threads REQUIRED)

# HMAC, SHA-256, X25519, and AES-GCM on any CPU.
find_path(MINIRAY_BEARSSL_INCLUDE bearssl.h REQUIRED)
find_library(MINIRAY_BEARSSL_LIBRARY libbearssl.a REQUIRED)
# A new function of BearSSL that src/ calls belongs into this list.
set(MINIRAY_BEARSSL_FUNCTIONS br_hmac_init br_hmac_key_init br_hmac_out br_hmac_update br_sha224_update br_sha256_init
    br_sha256_out br_sha256_vtable br_ec_c25519_m31 br_aes_x86ni_ctr_get_vtable br_aes_ct64_ctr_vtable
    br_ghash_pclmul_get br_ghash_ctmul64 br_gcm_init)

# AES-GCM on CPUs that have instructions for it. Elsewhere, BearSSL does it.
find_path(MINIRAY_IPSEC_MB_INCLUDE intel-ipsec-mb.h)
find_library(MINIRAY_IPSEC_MB_LIBRARY libIPSec_MB.a)
set(MINIRAY_IPSEC_MB_FUNCTIONS aes_keyexp_256_enc_sse aes_gcm_precomp_256_sse aes_gcm_enc_256_sse aes_gcm_dec_256_sse
    aes_gcm_precomp_256_vaes_avx512 aes_gcm_enc_256_vaes_avx512 aes_gcm_dec_256_vaes_avx512)
set(MINIRAY_HAS_IPSEC_MB OFF)
if(MINIRAY_IPSEC_MB_INCLUDE AND MINIRAY_IPSEC_MB_LIBRARY)
  set(MINIRAY_HAS_IPSEC_MB ON)
endif()

# libbacktrace gives names, files and lines to the addresses of a crash stack. GCC brings it; where a compiler has none,
# crash stacks have the names of exported functions alone. Its header stands among those of GCC, which no other compiler
# can read, so that it is copied out of there.
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libbacktrace.a OUTPUT_VARIABLE MINIRAY_BACKTRACE_LIBRARY
                OUTPUT_STRIP_TRAILING_WHITESPACE)
get_filename_component(miniray_backtrace_folder "${MINIRAY_BACKTRACE_LIBRARY}" DIRECTORY)
set(MINIRAY_BACKTRACE_HEADER ${miniray_backtrace_folder}/include/backtrace.h)
set(MINIRAY_BACKTRACE_FUNCTIONS backtrace_create_state backtrace_pcinfo backtrace_syminfo)
set(MINIRAY_BACKTRACE_INCLUDE ${PROJECT_BINARY_DIR}/backtrace)
set(MINIRAY_HAS_BACKTRACE OFF)
if(EXISTS "${MINIRAY_BACKTRACE_LIBRARY}" AND EXISTS "${MINIRAY_BACKTRACE_HEADER}")
  set(MINIRAY_HAS_BACKTRACE ON)
  configure_file(${MINIRAY_BACKTRACE_HEADER} ${MINIRAY_BACKTRACE_INCLUDE}/backtrace.h COPYONLY)
endif()

# Adds to a library those objects of an archive that define these symbols, and the objects that they need in turn. So a
# program that links the library needs no other archive. The linker says which objects they are, in its map.
function(miniray_bundle target archive)
  get_filename_component(name ${archive} NAME_WE)
  set(folder ${PROJECT_BINARY_DIR}/bundle/${name})
  file(REMOVE_RECURSE ${folder})
  file(MAKE_DIRECTORY ${folder})
  list(TRANSFORM ARGN PREPEND "-u;" OUTPUT_VARIABLE symbols)
  execute_process(COMMAND ${CMAKE_LINKER} -r -o all.o -Map=all.map ${symbols} ${archive} WORKING_DIRECTORY ${folder}
                  COMMAND_ERROR_IS_FATAL ANY)
  file(STRINGS ${folder}/all.map map)
  set(members "")
  foreach(line IN LISTS map)
    if(line MATCHES "\\.a\\(([^()]+\\.o)\\)$")
      list(APPEND members ${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES members)
  if(NOT members)
    message(FATAL_ERROR "${CMAKE_LINKER} names no object of ${archive} that defines ${ARGN}")
  endif()
  execute_process(COMMAND ${CMAKE_AR} x ${archive} ${members} WORKING_DIRECTORY ${folder} COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE ${folder}/all.o ${folder}/all.map)
  list(TRANSFORM members PREPEND ${folder}/)
  set_source_files_properties(${members} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  target_sources(${target} PRIVATE ${members})
endfunction()
