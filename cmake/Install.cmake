# `cmake --install`: the program, the static libraries, the headers and the CMake package `roformer`.
include(CMakePackageConfigHelpers)
set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/roformer")

install(TARGETS ${libraries} EXPORT roformerTargets)
install(TARGETS roformer_program)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/roformer" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h")
install(EXPORT roformerTargets NAMESPACE roformer:: DESTINATION "${package_folder}")

configure_file("${PROJECT_SOURCE_DIR}/cmake/roformerConfig.cmake.in" roformerConfig.cmake @ONLY)
write_basic_package_version_file(roformerConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/roformerConfig.cmake" "${PROJECT_BINARY_DIR}/roformerConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/Dependencies.cmake" "${PROJECT_SOURCE_DIR}/cmake/LibTorch.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindSentencePiece.cmake"
  DESTINATION "${package_folder}")
