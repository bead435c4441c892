# lehr_install(): the files that find_package(lehr) needs in another project: static libraries, headers and CMake
# targets.
#
# The targets are lehr::base, lehr::nn, ... and lehr::lehr for all of them. lehr::torch is not exported but created
# again by LehrTorch.cmake, so that an installed Lehr can use a torch package in another folder (LEHR_TORCH_DIR).

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

function(lehr_install)
  get_property(libraries GLOBAL PROPERTY LEHR_LIBRARIES)
  add_library(lehr_all INTERFACE)
  add_library(lehr::lehr ALIAS lehr_all)
  set_target_properties(lehr_all PROPERTIES EXPORT_NAME lehr)
  target_link_libraries(lehr_all INTERFACE ${libraries})

  set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/lehr")
  install(TARGETS ${libraries} lehr_all EXPORT lehrTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT lehrTargets NAMESPACE lehr:: DESTINATION "${package_dir}")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/lehr" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
          FILES_MATCHING PATTERN "*.h")

  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/lehrConfig.cmake.in"
                                "${PROJECT_BINARY_DIR}/package/lehrConfig.cmake" INSTALL_DESTINATION "${package_dir}"
                                NO_SET_AND_CHECK_MACRO)
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/lehrConfigVersion.cmake"
                                   COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/package/lehrConfig.cmake" "${PROJECT_BINARY_DIR}/package/lehrConfigVersion.cmake"
                "${PROJECT_SOURCE_DIR}/cmake/LehrTorch.cmake" "${PROJECT_SOURCE_DIR}/cmake/LehrDependencies.cmake"
          DESTINATION "${package_dir}")
endfunction()
