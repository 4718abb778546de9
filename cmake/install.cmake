# Installs the library for find_package(FlashPrime) and pkg-config; the result may be moved.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/FlashPrime")
set(pkgconfig_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

install(TARGETS flashprime EXPORT FlashPrimeTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library NAMELINK_COMPONENT library
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT library)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  COMPONENT library FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
  COMPONENT library)
install(EXPORT FlashPrimeTargets NAMESPACE flashprime:: DESTINATION "${package_dir}"
  COMPONENT library)

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/FlashPrimeConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/FlashPrimeConfig.cmake" INSTALL_DESTINATION "${package_dir}"
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/FlashPrimeConfigVersion.cmake"
  COMPATIBILITY SameMajorVersion)
install(FILES "${PROJECT_BINARY_DIR}/FlashPrimeConfig.cmake"
  "${PROJECT_BINARY_DIR}/FlashPrimeConfigVersion.cmake"
  DESTINATION "${package_dir}" COMPONENT library)

file(RELATIVE_PATH pc_prefix "/prefix/${pkgconfig_dir}" "/prefix")
# An archive alone needs its own libraries whether or not --static is asked for.
set(pc_libs "")
set(pc_libs_private "-lmbedcrypto -lstdc++ -lm -ldl -pthread")
get_target_property(installed_type flashprime TYPE)
if(installed_type STREQUAL "STATIC_LIBRARY")
  set(pc_libs " ${pc_libs_private}")
  set(pc_libs_private "")
endif()
configure_file("${CMAKE_CURRENT_LIST_DIR}/flashprime.pc.in" "${PROJECT_BINARY_DIR}/flashprime.pc"
  @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/flashprime.pc" DESTINATION "${pkgconfig_dir}"
  COMPONENT library)

if(FLASHPRIME_BUILD_CLI)
  install(TARGETS flashprime_command RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT command)
  set(texts "${PROJECT_BINARY_DIR}/cli/texts")
  install(FILES "${texts}/flashprime" COMPONENT command
    DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
  install(FILES "${texts}/_flashprime" COMPONENT command
    DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
  install(FILES "${texts}/flashprime.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1"
    COMPONENT command)
endif()
