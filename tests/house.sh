#!/usr/bin/env bash
# Checks that the house stays as ARCHITECTURE.md draws it.
#
#   house.sh sources                                who includes whom, and what no source may hold
#   house.sh fast_math CC                           options that forget NaN are refused
#   house.sh objects LIBMHA.SO LIBMHA.A LEVEL...    what the finished libraries export and call
#   house.sh clang CMAKE BUILD OPTION...            clang has nothing to warn of in src/
#
# Prints every finding and ends with status 1 if there was one, with 77 where a tool is missing.
set -euo pipefail
shopt -s lastpipe # findings are counted at the end of pipes
export LC_ALL=C

findings=0
finding() {
    echo "$*"
    findings=$((findings + 1))
}

# Each line of stdin is a finding.
findings_from() {
    local line
    while IFS= read -r line; do
        finding "$1: $line"
    done
}

# ---- who may include whom ------------------------------------------------------------------------

# The parts of src/ from bottom to top: each may include itself and any part on an earlier line; on
# one line (the roads) none may include another.
parts=(
    "mha" "common"
    "status" "memory" "cpu" "processors" "threads"
    "kernels/kernels"
    "context"
    "tensor" "blas" "project" "pack" "layer" "plan" "visible" "attend"
)
road_names="forward backward residual io"

# Height of a part; the roads share one, and what is not known has none.
height_of() { # PART
    local i
    for i in "${!parts[@]}"; do
        [ "${parts[i]}" != "$1" ] || { echo "$i"; return; }
    done
    [[ " $road_names " != *" $1 "* ]] || echo "${#parts[@]}"
}

# src/io/npy.c -> io; src/attend.c -> attend; kernels/kernels.h -> kernels/kernels
part_of() { # PATH below src/
    case $1 in
        io/*) echo io ;;
        *) echo "${1%.*}" ;;
    esac
}

includes_of() { # FILE: names as written, "x.h" or <x.h>
    sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*\([<"][^>"]*[>"]\).*/\1/p' "$1"
}

check_part() { # FILE below src/
    local file=$1 part height name included other
    part=$(part_of "$file")
    height=$(height_of "$part")
    if [ -z "$height" ]; then
        finding "src/$file: not in the table of parts in tests/house.sh"
        return
    fi
    while read -r name; do
        included=${name:1:-1}
        case $name in
            '<cblas.h>') [ "$file" = blas.c ] || finding "src/$file: only blas.c includes cblas.h" ;;
            '<pthread.h>') [ "$file" = threads.c ] || finding "src/$file: only threads.c includes pthread.h" ;;
            '<cpuid.h>' | '<sys/auxv.h>') [ "$file" = cpu.c ] || finding "src/$file: only cpu.c asks the processor" ;;
            '<'*intrin.h'>' | '<arm_neon.h>') finding "src/$file: only vec_*.h includes $included" ;;
            '<'*) ;;
            *)
                other=$(height_of "$(part_of "$included")")
                if [ -z "$other" ]; then
                    finding "src/$file: \"$included\" is no header of src/"
                elif [ "$(part_of "$included")" != "$part" ] && [ "$other" -ge "$height" ]; then
                    finding "src/$file: must not include \"$included\", which stands above or beside it"
                fi
                ;;
        esac
    done < <(includes_of "src/$file")
}

check_kernel_file() { # FILE below src/kernels/
    local name
    while read -r name; do
        case $name in
            '<stddef.h>' | '<stdint.h>' | '<stdbool.h>' | '<math.h>' | '<string.h>') ;;
            '<'*intrin.h'>' | '<arm_neon.h>')
                [[ $1 == vec_*.h ]] || finding "src/kernels/$1: only vec_*.h includes $name" ;;
            '<'*) finding "src/kernels/$1: kernels do not include $name" ;;
            *) [ -f "src/kernels/${name:1:-1}" ] ||
                finding "src/kernels/$1: kernels include files of kernels/ only, not $name" ;;
        esac
    done < <(includes_of "src/kernels/$1")
}

# Outside src/ the library is its public header; a test or a bench may look at one internal header.
check_outside() { # ALLOWED FILE
    local allowed=$1 file=$2 name inside=()
    while read -r name; do
        name=${name:1:-1}
        name=${name#../src/}
        if [ "$name" != mha.h ] && [ -f "src/$name" ] && [ ! -f "${file%/*}/$name" ]; then
            inside+=("$name")
        fi
    done < <(includes_of "$file")
    [ "${#inside[@]}" -le "$allowed" ] ||
        finding "$file: internal headers: ${inside[*]} ($allowed allowed)"
}

check_includes() {
    local file
    while read -r file; do
        case $file in
            src/kernels/*) check_kernel_file "${file#src/kernels/}" ;;
            src/*) check_part "${file#src/}" ;;
            programs/* | examples/* | tests/consumer/*) check_outside 0 "$file" ;;
            tests/* | bench/*) check_outside 1 "$file" ;;
        esac
    done < <(c_files)
}

# ---- what no source may hold ---------------------------------------------------------------------

c_files() {
    find src include programs examples tests $([ ! -d bench ] || echo bench) \
        \( -name '*.c' -o -name '*.h' -o -name '*.inl' -o -name '*.cpp' \) -type f | sort
}

check_texts() {
    local file lines
    c_files | xargs grep -nE '^[[:space:]]*#[[:space:]]*if[[:space:]]+0\b' |
        findings_from "code that is switched off" || true
    c_files | xargs grep -nE '\b(TODO|FIXME|XXX)\b' | grep -vE '(TODO|FIXME|XXX) ?\(?#[0-9]+' |
        findings_from "a TODO needs a number" || true
    c_files | xargs grep -nE '(^|[^_[:alnum:]])typedef\b.*\b[[:alnum:]_]+_t[[:space:]]*;' |
        findings_from "types do not end in _t" || true
    c_files | xargs grep -nE '^[[:space:]]*typedef[[:space:]]+struct\b' |
        grep -vE '^(include/mha\.h|src/kernels/vec_)' |
        findings_from "structs are not renamed" || true
    find src -name '*.[ch]' -not -path 'src/io/*' -type f -print0 |
        xargs -0 grep -nE '\bFILE[[:space:]]*\*|\b(fopen|fdopen|fread|fwrite|fputs|fputc|fprintf|printf|puts|perror)\(' |
        findings_from "only io/ uses streams" || true
    find src \( -name '*.c' -o -name '*.inl' -o -name '*.h' \) -not -path 'src/kernels/vec_*' -type f \
        -print0 | xargs -0 grep -nE '\b_mm(256|512)?_|\bv(ld1|st1|fma)q_' |
        findings_from "only vec_*.h knows intrinsics" || true
    # The public header is one file on purpose, and tests may be long tables.
    while read -r file; do
        lines=$(wc -l < "$file")
        [ "$lines" -le 600 ] || finding "$file: $lines lines, more than 600: it asks to be two"
    done < <({ c_files; find cmake docs run CMakeLists.txt -type f; } |
        grep -vE '^(tests/|include/mha\.h$)')
}

# Options of a compiler that forget NaN and infinity are refused, and nothing else is.
check_fast_math() { # CC
    local flag
    "$1" -std=gnu11 -Iinclude -Isrc -fsyntax-only -x c src/common.h ||
        finding "src/common.h does not compile"
    for flag in -ffast-math -Ofast -ffinite-math-only; do
        ! "$1" -std=gnu11 -Iinclude -Isrc "$flag" -fsyntax-only -x c src/common.h 2> /dev/null ||
            finding "src/common.h lets $flag through"
    done
}

# Builds the library in the directory BUILD, all levels of kernels and all warnings.
check_clang() { # CMAKE BUILD OPTION...
    command -v clang > /dev/null || { echo "clang is not installed"; exit 77; }
    local cmake=$1 build=$2
    shift 2
    if ! {
        "$cmake" -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang \
            -DMHA_WERROR=ON -DMHA_BUILD_TESTS=OFF -DMHA_BUILD_PROGRAMS=OFF "$@" &&
            "$cmake" --build "$build" -j 2
    } > "$build.log" 2>&1; then
        tail -n 40 "$build.log"
        finding "clang does not build the library"
    fi
}

# ---- the finished libraries ----------------------------------------------------------------------

check_objects() { # SO A LEVEL...
    local so=$1 archive=$2
    shift 2
    nm -D --defined-only "$so" | awk '$2 != "A" && $3 !~ /^mha_/ { print $3 }' |
        findings_from "$so exports"
    nm -g --defined-only "$archive" | awk 'NF == 3 && $3 !~ /^mha_/ { print $3 }' |
        findings_from "$archive defines a global"

    # What is declared MHA_API is exported, and nothing more.
    diff <(nm -D --defined-only "$so" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort) \
        <(grep -v '^#' include/mha.h | tr '\n' ' ' | sed 's/;/;\n/g' |
            sed -n 's/.*\bMHA_API\b[^(]*\b\(mha_[a-z0-9_]*\) *(.*/\1/p' | sort) |
        sed -n 's/^< /exported but not in mha.h: /p; s/^> /in mha.h but not exported: /p' |
        findings_from "$so" || true

    check_kernel_units "$archive" "$@"
    check_globals "$archive"

    nm -u "$archive" | awk '{ print $NF }' | sort -u |
        grep -xE '(__)?(abort|exit|_exit|_Exit|quick_exit|assert_fail|printf|vprintf|fprintf|vfprintf|dprintf|puts|fputs|putchar|perror|stdout|stderr|setlocale|strto[dfl]|strtold|ato[fil]|(isoc(99|23)_)?f?s?scanf|srand|rand|signal|set_fast_math)(_chk)?' |
        findings_from "$archive calls" || true
    ! objdump -d "$so" | grep -q '<set_fast_math>' || finding "$so was linked with crtfastmath.o"
}

# Variables that change, static ones of functions included: every object in a section for them. What
# is constant but for addresses is elsewhere.
globals="gate process"

check_globals() { # ARCHIVE
    diff <(tr ' ' '\n' <<< "$globals" | sort) \
        <(objdump -t "$1" | awk '/ O / && $(NF - 2) ~ /^(\.t?(data|bss)(\.|$)|\*COM\*)/ &&
            $(NF - 2) !~ /^\.data\.rel\.ro/ { print $NF }' | sort) |
        sed -n 's/^< /no such global: /p; s/^> /a variable that is global: /p' |
        findings_from "$1" || true
}

# One global symbol in each kernel unit: its table.
check_kernel_units() { # ARCHIVE LEVEL...
    local archive=$1
    shift
    diff <(printf 'mha_kernels_%s\n' "$@" | sort) \
        <(nm -g --defined-only "$archive" |
            awk '/:$/ { kernels = ($1 ~ /^kernels\.c\./) } kernels && NF == 3 { print $3 }' | sort) |
        sed -n 's/^< /no such table: /p; s/^> /a kernel unit exports more than its table: /p' |
        findings_from "$archive" || true
}

cd "$(dirname "$0")/.."
case ${1-} in
    sources)
        check_includes
        check_texts
        ;;
    fast_math) check_fast_math "$2" ;;
    objects) check_objects "${@:2}" ;;
    clang) check_clang "${@:2}" ;;
    *)
        echo "usage: house.sh sources | fast_math CC | objects LIBMHA.SO LIBMHA.A LEVEL... |" \
            "clang CMAKE BUILD OPTION..." >&2
        exit 2
        ;;
esac
[ "$findings" -eq 0 ] || exit 1
