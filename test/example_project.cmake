# Installs Lehr into a folder of the build, then configures, builds and tests example/EXAMPLE against it, as somebody with
# a model in their own repository would. Run as a test: cmake -DEXAMPLE= -DSOURCE_DIR= -DBUILD_DIR= ... -P
# example_project.cmake. PYTHON and SCRIPT, if they are given, run the built program EXAMPLE.

set(prefix "${BUILD_DIR}/${EXAMPLE}/prefix")
set(project "${BUILD_DIR}/${EXAMPLE}/build")
file(REMOVE_RECURSE "${prefix}" "${project}")

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message("${output}")
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "exit code ${result} of: ${command}")
  endif()
endfunction()

run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}")
run("${prefix}/bin/lehr" --version)  # finds LibTorch
run("${CMAKE_COMMAND}" -S "${SOURCE_DIR}/example/${EXAMPLE}" -B "${project}" -G "${GENERATOR}"
    "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}"
    -DCMAKE_BUILD_TYPE=None)
run("${CMAKE_COMMAND}" --build "${project}")
if(SCRIPT)
  run("${PYTHON}" "${SCRIPT}" "${project}/${EXAMPLE}")
else()
  run("${CMAKE_CTEST_COMMAND}" --test-dir "${project}" --output-on-failure)
endif()
