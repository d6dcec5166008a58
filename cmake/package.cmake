# What is installed: libraries, header, pages, and the files by which others find them. Nothing
# installed names the prefix: the tree may be moved.

include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mha)
foreach(kind shared static)
    install(TARGETS mha_${kind} EXPORT mha-${kind})
    install(EXPORT mha-${kind} NAMESPACE mha:: DESTINATION ${package_dir})
endforeach()
configure_package_config_file(cmake/mha-config.cmake.in mha-config.cmake
    INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
# Until 1.0 a minor release may change the interface.
write_basic_package_version_file(mha-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES
    ${PROJECT_BINARY_DIR}/mha-config.cmake
    ${PROJECT_BINARY_DIR}/mha-config-version.cmake
    DESTINATION ${package_dir})

# In mha.pc the prefix is told by the place of the file, the rest by the prefix.
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
cmake_path(ABSOLUTE_PATH pc_dir BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX} OUTPUT_VARIABLE pc_full)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${pc_full} OUTPUT_VARIABLE pc_up)
foreach(name BINDIR LIBDIR INCLUDEDIR)
    set(directory ${CMAKE_INSTALL_${name}})
    if(IS_ABSOLUTE "${directory}")
        set(PC_${name} "${directory}")
    else()
        set(PC_${name} "\${prefix}/${directory}")
    endif()
endforeach()
set(PC_PREFIX "\${pcfiledir}/${pc_up}")
string(REGEX REPLACE "/+$" "" PC_PREFIX "${PC_PREFIX}")
configure_file(cmake/mha.pc.in mha.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/mha.pc DESTINATION ${pc_dir})

install(FILES include/mha.h TYPE INCLUDE)
install(FILES README.md LICENSE TYPE DOC)
if(MHA_BUILD_PROGRAMS)
    install(FILES docs/mha.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
