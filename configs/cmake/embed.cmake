# SPDX-License-Identifier: Apache-2.0
# cmake -DIN=FILE -DOUT=FILE.c -DNAME=array -P embed.cmake: writes a file as a C array, with a NUL
# after it.
file(READ ${IN} hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR bytes "${digits} / 2")
string(REGEX REPLACE "(..)" "0x\\1," body "${hex}")
# unsigned, since the bytes are UTF-8
file(WRITE ${OUT}
     "extern const unsigned char ${NAME}[];\n"
     "extern const unsigned long ${NAME}_len;\n"
     "const unsigned char ${NAME}[] = {\n${body}0};\n"
     "const unsigned long ${NAME}_len = ${bytes};\n")
