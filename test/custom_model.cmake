# Installs Lehr into a folder of the build, then configures, builds and tests example/custom_model against it, as somebody
# with a model in their own repository would. Run as a test: cmake -DSOURCE_DIR= -DBUILD_DIR= ... -P custom_model.cmake

set(prefix "${BUILD_DIR}/custom_model/prefix")
set(project "${BUILD_DIR}/custom_model/build")
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
run("${CMAKE_COMMAND}" -S "${SOURCE_DIR}/example/custom_model" -B "${project}" -G "${GENERATOR}"
    "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}"
    -DCMAKE_BUILD_TYPE=None)
run("${CMAKE_COMMAND}" --build "${project}")
run("${CMAKE_CTEST_COMMAND}" --test-dir "${project}" --output-on-failure)
