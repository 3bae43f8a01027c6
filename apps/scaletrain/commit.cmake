cmake_minimum_required(VERSION 3.25)

# cmake -DSOURCE=... -DOUTPUT=... -P commit.cmake: writes a source file that knows the commit that is built. Run at every build;
# the file is written only where it changes. Where the folder is no checkout (a released archive) the commit is empty.
set(COMMIT "")
find_program(GIT git)
if(GIT)
  # Of this folder itself: an archive unpacked inside somebody's checkout is not of that commit.
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --show-cdup
                  OUTPUT_VARIABLE ABOVE OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE FAILED)
  if(NOT FAILED AND ABOVE STREQUAL "")
    execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --dirty= --abbrev=12 --exclude=*
                    OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND ${GIT} -C ${SOURCE} diff --quiet HEAD RESULT_VARIABLE CHANGED ERROR_QUIET)
    if(COMMIT AND CHANGED)
      string(APPEND COMMIT " with local changes")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT
"// Written by commit.cmake.
#include \"version.h\"

namespace scaletrain {

const char* const built_commit = \"@COMMIT@\";

}  // namespace scaletrain
")
