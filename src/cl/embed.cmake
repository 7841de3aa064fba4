# SPDX-License-Identifier: MIT
# Turns kernel files into C byte arrays: cmake "-DFILES=a.cl;b.h" -DOUTPUT=embedded.c -P embed.cmake
#
# The output defines the table of backend_opencl/embedded.h, in the order of FILES. Every text ends
# in a NUL that its size does not count.
if(NOT FILES OR NOT OUTPUT)
  message(FATAL_ERROR "embed.cmake: set FILES (a list of paths) and OUTPUT")
endif()

set(arrays "")
set(rows "")
set(count 0)
foreach(path IN LISTS FILES)
  get_filename_component(name "${path}" NAME)
  file(READ "${path}" hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR bytes "${digits} / 2")
  string(REPEAT "[0-9a-f]" 32 line)
  string(REGEX REPLACE "(${line})" "\\1\n" hex "${hex}") # 16 bytes a line
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  string(APPEND arrays "/* ${name} */\nstatic const unsigned char text_${count}[] = {\n${hex}0x00\n};\n\n")
  string(APPEND rows "    { \"${name}\", text_${count}, ${bytes} },\n")
  math(EXPR count "${count} + 1")
endforeach()

file(WRITE "${OUTPUT}" "/* Made by src/cl/embed.cmake; do not edit. */
#include \"backend_opencl/embedded.h\"

${arrays}const atto__embedded atto__embedded_files[] = {
${rows}};
const int atto__embedded_count = ${count};
")
