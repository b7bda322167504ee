# SPDX-License-Identifier: Apache-2.0
# cmake -DIN=index.html -DOUT=page.c -P embed.cmake: writes the page as a C array.
file(READ ${IN} hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR bytes "${digits} / 2")
string(REGEX REPLACE "(..)" "0x\\1," body "${hex}")
# unsigned, since the bytes are UTF-8
file(WRITE ${OUT}
     "extern const unsigned char agent_page_html[];\n"
     "extern const unsigned long agent_page_html_len;\n"
     "const unsigned char agent_page_html[] = {\n${body}0};\n"
     "const unsigned long agent_page_html_len = ${bytes};\n")
