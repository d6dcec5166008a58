#!/usr/bin/env bash
# Checks the installed package as its users meet it. `package.sh install` installs the library and
# moves the result to another place, where the other checks find it:
#
#   text                 no installed text names the old prefix or the build directory
#   pkg_config_shared, pkg_config_static, find_package_shared, find_package_static, ctypes
#   names                a program with functions of common names links statically
#   header               the header compiles alone, in every language version
#   readme               the quick start of README.md, word for word
#   command              the installed program starts
#   destdir              a staged installation
#   directories          other installation directories (configures and builds the library)
#   subdirectory         add_subdirectory of the sources (configures and builds the library)
#
# Environment: BUILD, a finished build of the library; CC; CMAKE; PYTHON; MHA_BLAS.
set -euo pipefail

source=$(cd "$(dirname "$0")/../.." && pwd)
here=$source/tests/consumer
work=$BUILD/package
stage=$work/installed-here
prefix=$work/moved-there
export LC_ALL=C
# Nothing of the host's own installations or settings may help.
unset PKG_CONFIG_PATH CMAKE_PREFIX_PATH LD_LIBRARY_PATH DESTDIR CFLAGS CXXFLAGS LDFLAGS

fail() { echo "$*" >&2; exit 1; }

# The directory of a file below a prefix: lib may be lib64 or lib/x86_64-linux-gnu.
directory_of() { # PREFIX FILE
    local found
    found=$(find "$1" -name "$2" | head -n 1)
    [ -n "$found" ] || fail "no $2 below $1"
    dirname "$found"
}

# A fresh directory for one check, which becomes the current one.
enter() {
    rm -rf "${work:?}/$1"
    mkdir -p "$work/$1"
    cd "$work/$1"
}

# A C++ compiler beside $CC, if there is one.
cxx_of() {
    case $(basename "$1") in
        clang*) echo clang++ ;;
        *) echo g++ ;;
    esac
}

install() {
    rm -rf "$stage" "$prefix"
    "$CMAKE" --install "$BUILD" --prefix "$stage" > /dev/null
    mv "$stage" "$prefix"
    local file
    for file in mha.h libmha.so libmha.a mha.pc mha-config.cmake mha-config-version.cmake \
        README.md LICENSE; do
        directory_of "$prefix" "$file" > /dev/null
    done
}

text() {
    local found
    # -I: text files only. Debugging information in binaries may name sources.
    found=$(grep -rIlF -e "$stage" -e "$BUILD" -e "$source" "$prefix" || true)
    [ -z "$found" ] || fail "these name a directory of the build: $found"
}

with_pkg_config() {
    PKG_CONFIG_PATH=$(directory_of "$prefix" mha.pc)
    export PKG_CONFIG_PATH
}

# Builds the program in C and in C++ with given flags for the compiler and for linking, and runs it.
build_and_run() { # CFLAGS LIBS [FILE...]
    local cflags=$1 libs=$2
    shift 2
    # shellcheck disable=SC2086
    {
        $CC $cflags "$here/forward.c" "$@" -o c $libs
        $(cxx_of "$CC") -x c++ $cflags "$here/forward.c" -x none -o cpp $libs
    }
    ./c
    ./cpp
}

needs_shared() { # PROGRAM yes|no
    local answer=no
    ! readelf -d "$1" | grep -q 'NEEDED.*libmha\.so' || answer=yes
    [ "$answer" = "$2" ] || fail "does $1 need libmha.so? $answer, wanted $2"
}

pkg_config_shared() {
    enter pkg_config_shared
    with_pkg_config
    pkg-config --validate mha
    local version
    version=$(sed -n 's/^#define MHA_VERSION "\(.*\)"/\1/p' "$source/include/mha.h")
    [ "$(pkg-config --modversion mha)" = "$version" ] || fail "the version is not $version"
    [ "$(realpath "$(pkg-config --variable=prefix mha)")" = "$(realpath "$prefix")" ] ||
        fail "the prefix is $(pkg-config --variable=prefix mha)"
    [ -f "$(pkg-config --variable=includedir mha)/mha.h" ] || fail "no header in includedir"
    [ -d "$(pkg-config --variable=bindir mha)" ] || fail "no bindir"
    pkg-config --define-variable=prefix=/q --cflags --libs mha > flags
    grep -q -e '-I/q/' flags && grep -q -e '-L/q/' flags || fail "--define-variable: $(cat flags)"
    local major=${version%%.*}
    readelf -d "$(pkg-config --variable=libdir mha)/libmha.so" |
        grep -q "SONAME.*\[libmha\.so\.$major\]" || fail "the soname is not libmha.so.$major"

    export LD_LIBRARY_PATH
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir mha)
    build_and_run "$(pkg-config --cflags mha)" "$(pkg-config --libs mha)"
    needs_shared c yes
}

pkg_config_static() {
    enter pkg_config_static
    with_pkg_config
    # libmha static, the system's libraries as they come.
    local libs
    libs=$(pkg-config --static --libs mha | sed 's/-lmha/-l:libmha.a/')
    build_and_run "$(pkg-config --static --cflags mha)" "$libs"
    needs_shared c no
}

names() {
    enter names
    with_pkg_config
    local libs
    libs=$(pkg-config --static --libs mha | sed 's/-lmha/-l:libmha.a/')
    build_and_run "$(pkg-config --static --cflags mha)" "$libs" "$here/names.c"
}

# The program between ```c and ```, and the line that compiles it, with the environment the README
# says, its prefix replaced by ours.
readme() {
    enter readme
    sed -n '/^```c$/,/^```$/p' "$prefix/share/doc/mha/README.md" | sed '1d;$d' > prog.c
    [ "$(wc -l < prog.c)" -ge 25 ] || fail "no quick start in README.md"
    local lines
    lines=$(sed -n 's/^    \(export .*\|cc prog\.c .*\)$/\1/p' "$prefix/share/doc/mha/README.md")
    [ "$(wc -l <<< "$lines")" -eq 4 ] || fail "not three exports and a compilation: $lines"
    lines=${lines//'$HOME/libmha'/$prefix}
    lines=${lines//cc prog.c/$CC prog.c}
    bash -euc "$lines" > printed
    grep -qx 'y\[0\] = -\?[0-9.]\{8,\}' printed || fail "it printed $(cat printed)"
}

configure_and_run() { # KIND [OPTION...]
    local kind=$1 program
    shift
    "$CMAKE" -S "$here" -B . -G "Unix Makefiles" -DKIND="$kind" -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_C_COMPILER="$CC" -DCMAKE_CXX_COMPILER="$(cxx_of "$CC")" \
        -DCMAKE_RUNTIME_OUTPUT_DIRECTORY="$PWD" "$@" > configured
    "$CMAKE" --build . -j 2 > built
    while read -r program; do
        "$program"
    done < CONSUMERS
}

find_package_shared() {
    enter find_package_shared
    configure_and_run shared -DCMAKE_PREFIX_PATH="$prefix"
    needs_shared c_mha_mha yes
}

find_package_static() {
    enter find_package_static
    configure_and_run static -DCMAKE_PREFIX_PATH="$prefix"
    needs_shared c_mha_static no
}

ctypes() {
    "$PYTHON" "$here/layer.py" "$(directory_of "$prefix" libmha.so)/libmha.so"
}

# Both compilers, as far as they are installed.
header() {
    enter header
    local include compiler standard
    include=$(directory_of "$prefix" mha.h)
    printf '#include <mha.h>\n' > alone.c
    for compiler in gcc clang; do
        command -v $compiler > /dev/null || continue
        for standard in c99 c11; do
            $compiler -std=$standard -pedantic -Wall -Wextra -Werror -I"$include" -fsyntax-only \
                alone.c "$here/header.c"
        done
        command -v "$(cxx_of $compiler)" > /dev/null || continue
        for standard in c++11 c++17 c++20; do
            $(cxx_of $compiler) -x c++ -std=$standard -pedantic -Wall -Wextra -Werror \
                -I"$include" -fsyntax-only alone.c "$here/header.c"
        done
    done
}

command_() {
    local said version
    [ -x "$prefix/bin/mha" ] || fail "no bin/mha"
    directory_of "$prefix" mha.1 > /dev/null
    version=$(sed -n 's/^#define MHA_VERSION "\(.*\)"/\1/p' "$source/include/mha.h")
    said=$("$prefix/bin/mha" --version)
    [[ $said == *"$version"* ]] || fail "mha --version says \"$said\""
}

destdir() {
    enter destdir
    local final
    final=$(sed -n 's/^CMAKE_INSTALL_PREFIX:PATH=//p' "$BUILD/CMakeCache.txt")
    DESTDIR=$PWD/root "$CMAKE" --install "$BUILD" > /dev/null
    [ -f "$PWD/root$(realpath -m "$final")/include/mha.h" ] || fail "nothing at \$DESTDIR$final"
    ! grep -rIlF "$PWD" root || fail "these name the staging directory"
}

directories() {
    enter directories
    "$CMAKE" -S "$source" -B build -G "Unix Makefiles" -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_C_COMPILER="$CC" -DMHA_BLAS="$MHA_BLAS" -DMHA_BUILD_TESTS=OFF \
        -DMHA_BUILD_PROGRAMS=OFF -DCMAKE_INSTALL_INCLUDEDIR=inc/sub \
        -DCMAKE_INSTALL_LIBDIR=lib/deep/er > configured
    "$CMAKE" --build build -j 2 > built
    prefix=$PWD/there
    "$CMAKE" --install build --prefix "$prefix" > /dev/null
    [ -f there/inc/sub/mha.h ] || fail "no inc/sub/mha.h"
    with_pkg_config
    LD_LIBRARY_PATH=there/lib/deep/er build_and_run \
        "$(pkg-config --cflags mha)" "$(pkg-config --libs mha)"
    mkdir consumer
    cd consumer
    configure_and_run static -DCMAKE_PREFIX_PATH="$prefix" -Dmha_DIR="$prefix/lib/deep/er/cmake/mha"
}

subdirectory() {
    enter subdirectory
    configure_and_run source -DLIBMHA="$source" -DMHA_BLAS="$MHA_BLAS"
    needs_shared c_mha_static no
}

case ${1-} in
    command) command_ ;;
    install | text | pkg_config_shared | pkg_config_static | find_package_shared | \
        find_package_static | ctypes | names | header | readme | destdir | directories | \
        subdirectory) "$1" ;;
    *) fail "usage: package.sh CHECK" ;;
esac
