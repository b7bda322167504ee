# SPDX-License-Identifier: Apache-2.0
# The target `uninstall`: removes the files that `cmake --install` wrote last from this build
# folder, and folders of Nebula that are empty then. Homes of agents stay.
set(list ${CMAKE_CURRENT_BINARY_DIR}/install_manifest.txt)
if(NOT EXISTS ${list})
  message(FATAL_ERROR "nothing was installed from this build folder: there is no ${list}")
endif()
file(STRINGS ${list} files)
set(folders)
foreach(file ${files})
  file(REMOVE "$ENV{DESTDIR}${file}")
  get_filename_component(folder "$ENV{DESTDIR}${file}" DIRECTORY)
  while(folder MATCHES "/nebula(/|$)") # only folders that are ours
    list(APPEND folders ${folder})
    get_filename_component(folder ${folder} DIRECTORY)
  endwhile()
endforeach()
list(REMOVE_DUPLICATES folders)
list(SORT folders ORDER DESCENDING) # a folder comes after those in it
foreach(folder ${folders})
  file(REMOVE_RECURSE ${folder}/__pycache__)
  execute_process(COMMAND rmdir ${folder} ERROR_QUIET) # keeps a folder with anything in it
endforeach()
file(REMOVE ${list})
list(LENGTH files count)
message(STATUS "${count} files removed; these stay: homes of agents (~/.nebula, /var/lib/nebula) "
  "and texts (~/.cache/nebula)")
