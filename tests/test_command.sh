#!/bin/bash
# Tests the command mha, whose path is the first argument: usage, exit codes, files in and out. The
# input files are made by printf; the numbers are chosen so that every result is exact and can be
# compared byte by byte. Stops at the first failure.
set -u
export LC_ALL=C

mha=$1
case $mha in
    /*) ;;
    *) mha=$PWD/$mha ;;
esac
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

# In a build with the address sanitizer: what fontconfig keeps until the end is not ours to free.
echo "leak:libfontconfig" > suppressions
export LSAN_OPTIONS=${LSAN_OPTIONS-}:suppressions=$work/suppressions:print_suppressions=0

fail()
{
    echo "FAILED: $*"
    echo "  status $status"
    sed 's/^/  stdout: /' stdout
    sed 's/^/  stderr: /' stderr
    exit 1
}

run()
{
    timeout 120 "$mha" "$@" > stdout 2> stderr # nothing may wait for ever
    status=$?
}

# succeeds WHAT ARGUMENT...: exit 0, nothing on stderr
succeeds()
{
    local what=$1
    shift
    run "$@"
    [ $status -eq 0 ] || fail "$what: exit status 0 wanted"
    [ ! -s stderr ] || fail "$what: nothing on stderr wanted"
    echo "ok: $what"
}

# refused CODE TEXT ARGUMENT...: that exit code, one line on stderr with that text, the command's
# name in front, nothing on stdout
refused()
{
    local code=$1 text=$2 name=mha
    shift 2
    case ${1-} in
        info | inspect | run | heatmap | bench) name="mha $1" ;;
    esac
    run "$@"
    [ $status -eq "$code" ] || fail "'$*': exit status $code wanted"
    [ "$(wc -l < stderr)" -eq 1 ] || fail "'$*': one line on stderr wanted"
    grep -q "^$name: " stderr || fail "'$*': the line must begin with '$name: '"
    grep -qF -e "$text" stderr || fail "'$*': '$text' wanted on stderr"
    [ ! -s stdout ] || fail "'$*': nothing on stdout wanted"
    echo "ok: refused with $code: $text"
}

# prints WHAT LINE: the last stdout has that very line
prints()
{
    grep -qxF -e "$2" stdout || fail "$1: the line '$2' wanted"
    echo "ok: $1"
}

# ---- making files ----

# bytes VALUE...: one byte each
bytes()
{
    local value
    for value; do
        printf "\\$(printf %03o "$value")"
    done
}

# little_endian BYTES VALUE
little_endian()
{
    local i
    for ((i = 0; i < $1; i++)); do
        bytes $((($2 >> (8 * i)) & 255))
    done
}

# floats NUMBER...: float32; whole numbers from 0 on, 0.5, -inf and nan
floats()
{
    local number exponent
    for number; do
        case $number in
            0) little_endian 4 0 ;;
            0.5) little_endian 4 $((0x3f000000)) ;;
            -inf) little_endian 4 $((0xff800000)) ;;
            nan) little_endian 4 $((0x7fc00000)) ;;
            *)
                exponent=0
                while ((number >> exponent > 1)); do
                    ((exponent++))
                done
                little_endian 4 $((((127 + exponent) << 23) |
                    ((number << (23 - exponent)) & 0x7fffff)))
                ;;
        esac
    done
}

# npy TYPE SHAPE: the header of a .npy file, for example npy '<f4' '2, 3,'
npy()
{
    local header="{'descr': '$1', 'fortran_order': False, 'shape': ($2), }"
    local length=$(((10 + ${#header} + 1 + 63) / 64 * 64 - 10))
    printf '\223NUMPY\001\000'
    little_endian 2 $length
    printf "%-$((length - 1))s\n" "$header"
}

# safetensors JSON: the beginning of a .safetensors file
safetensors()
{
    little_endian 8 ${#1}
    printf %s "$1"
}

# entry NAME SHAPE BEGIN END: a float32 tensor in that JSON
entry()
{
    printf '"%s":{"dtype":"F32","shape":[%s],"data_offsets":[%d,%d]}' "$@"
}

# holds FILE NUMBER...: the data of a float32 .npy file, byte by byte
holds()
{
    local file=$1
    shift
    floats "$@" > wanted
    tail -c $((4 * $#)) "$file" > got
    cmp -s wanted got || { od -f got > stderr; fail "$file: $* wanted"; }
    echo "ok: $file holds $*"
}

# shaped FILE SHAPE
shaped()
{
    succeeds "inspect $1" inspect "$1"
    prints "$1 is $2" "$1  float32  $2"
}

# size_of FILE.png: its width and height
size_of()
{
    od -An -tu1 -j16 -N8 "$1" | { read -r a b c d e f g h
        echo $(((a << 24) + (b << 16) + (c << 8) + d)) $(((e << 24) + (f << 16) + (g << 8) + h)); }
}

# ---- the command itself ----

for name in '' info inspect run heatmap bench; do
    succeeds "mha $name --help" $name --help
    grep -q "^usage: mha $name" stdout || fail "usage wanted"
    grep -q "^exit status:" stdout || fail "exit status wanted"
    cp stdout help
    succeeds "mha $name -h" $name -h
    cmp -s stdout help || fail "the same text wanted"
done
succeeds "mha --version" --version
grep -Eqx 'mha [0-9]+\.[0-9]+\.[0-9]+' stdout || fail "a version wanted"
version=$(sed 's/mha //' stdout)

refused 2 "no command given"
refused 2 "unknown command 'attend'" attend
refused 2 "unknown command 'a\\nb'" $'a\nb'
refused 2 "unknown option '--verbose'" --verbose
refused 2 "unexpected argument 'now'" --version now
refused 2 "unexpected argument 'now'" info now
refused 2 "unknown or ambiguous option '--fast'" info --fast
refused 2 "unknown option -x" info -x
refused 2 "option --help takes no value" info --help=yes

succeeds "mha info" info
prints "info tells the version" "version     $version"
grep -qE '^threads     [1-9][0-9]*$' stdout || fail "info tells the threads"
grep -Eq '^level       [a-z0-9]+$' stdout || fail "a level wanted"
grep -Eq '^processor   .' stdout || fail "a processor wanted"
grep -Eq '^BLAS        .' stdout || fail "a BLAS wanted"
MHA_ISA=generic run info
[ $status -eq 0 ] || fail "MHA_ISA=generic mha info: exit status 0 wanted"
prints "info tells MHA_ISA" "MHA_ISA     generic"
prints "info tells the level that it asks for" "level       generic"
(
    export MHA_ISA=sparc
    refused 1 "sparc" info
) || exit 1

# What cannot be written must be told. A full disk takes the text only when it is flushed.
if [ -c /dev/full ]; then
    for name in --version --help info "run --help"; do
        "$mha" $name > /dev/full 2> stderr
        status=$?
        : > stdout
        [ $status -eq 1 ] || fail "$name on a full disk: exit status 1 wanted"
        grep -q ": cannot write the standard output: No space left on device$" stderr ||
            fail "$name on a full disk: the reason wanted"
        echo "ok: $name on a full disk"
    done
fi

# ---- inspect ----

{ npy '<f4' '2, 3,'; floats 1 2 3 4 5 6; } > a.npy
succeeds "inspect a .npy file" inspect a.npy
printf 'a.npy  float32  [2, 3]\n1 tensor, 24 bytes\n' > wanted
cmp -s stdout wanted || fail "another text wanted: $(cat wanted)"

{ npy '|b1' '3,'; bytes 0 1 1; } > flags.safetensors
succeeds "the content decides, not the suffix" inspect flags.safetensors
prints "a bool array" "flags.safetensors  bool  [3]"

{
    safetensors '{"__metadata__":{"format":"pt"},'\
'"w.\u001b[31m\u0007":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]},'\
'"b\n":{"dtype":"I64","shape":[],"data_offsets":[8,16]},'\
'"quantised":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[16,19]}}'
    printf '0123456789012345678'
} > names.npy
succeeds "inspect a .safetensors file" inspect names.npy
printf '%s\n' 'w.\x1b[31m\x07  float16  [2, 2]' 'b\n             int64    []' \
    'quantised       unknown  [3]' '3 tensors, 16 bytes and 1 of unknown type' > wanted
cmp -s stdout wanted || fail "another text wanted: $(cat wanted)"
echo "ok: aligned columns, escaped names, unknown types"

succeeds "inspect several files" inspect a.npy names.npy
prints "a line over each" "names.npy:"
refused 1 "wanted at most 20" inspect --header-limit 20 names.npy
refused 2 "--header-limit: '0' is not a whole number from 1" inspect --header-limit 0 names.npy
refused 2 "--header-limit: '9223372036854775808' is not" inspect --header-limit \
    9223372036854775808 names.npy
refused 2 "option --header-limit needs a value" inspect --header-limit
refused 2 "no file given" inspect
refused 1 "missing.npy: No such file or directory" inspect missing.npy
refused 1 ".: Is a directory" inspect .
mkfifo pipe
ln -s pipe pipe.npy
refused 1 "pipe: not a regular file" inspect pipe
refused 1 "pipe.npy: not a regular file" inspect pipe.npy
printf 'some text of a few words\n' > text
refused 1 "text: neither a .npy nor a .safetensors file" inspect text
: > empty
refused 1 "empty: neither a .npy nor a .safetensors file" inspect empty
head -c 40 a.npy > short.npy
refused 1 "short.npy" inspect short.npy
head -c 40 names.npy > short.safetensors
refused 1 "short.safetensors" inspect short.safetensors
run inspect missing.npy a.npy
[ $status -eq 1 ] || fail "one file missing: exit status 1 wanted"
prints "the other file is listed all the same" "a.npy  float32  [2, 3]"

# ---- run ----

# One head of width 2 on E = 2. W_Q and W_K are zero, so every score is 0 and a query takes the mean
# of what it sees; W_V is the identity, W_O twice that, b_O = (1, 0).
{
    safetensors "{$(entry layer.in_proj_weight 6,2 0 48),$(entry layer.out_proj.weight 2,2 48 64),$(
        entry layer.out_proj.bias 2 64 72)}"
    floats 0 0 0 0 0 0 0 0 1 0 0 1
    floats 2 0 0 2
    floats 1 0
} > mean.safetensors
mean="--weights mean.safetensors --prefix layer. --naming torch --fusion blocks --heads 1"
{ npy '<f4' '2, 2,'; floats 1 2 3 4; } > x.npy
{ npy '<f4' '1, 2,'; floats 1 2; } > first.npy
{ npy '<f4' '2, 2, 2,'; floats 1 2 3 4 2 2 0 4; } > batch.npy

# gives WHAT NUMBERS ARGUMENT...: mha run with the mean layer on x.npy
gives()
{
    local what=$1 numbers=$2
    shift 2
    succeeds "run: $what" run $mean --input x.npy --output y.npy "$@"
    holds y.npy $numbers
}

gives "plain" "5 6 5 6"
shaped y.npy "[2, 2]"
gives "the residual" "6 8 8 10" --residual
gives "causal" "3 4 5 6" --causal
gives "a window to the left" "5 6 7 8" --window-left 0
gives "a window to the right" "3 4 5 6" --window-right 0
gives "both windows" "3 4 7 8" --window-left 0 --window-right 0
gives "a key length" "3 4 3 4" --key-lengths 1
gives "a query length" "5 6 1 0" --query-lengths 1
gives "the corner named" "3 4 5 6" --causal --align top-left
gives "another key and value" "3 4 3 4" --key first.npy --value first.npy
gives "threads" "5 6 5 6" --threads 3
gives "the packed engine" "5 6 5 6" --packed
for engine in blas packed; do
    option=; [ $engine = blas ] || option=--packed
    "$mha" run $mean --input x.npy --output y.npy --verbose $option 2> said ||
        fail "run --verbose $option"
    grep -qx "mha run: the engine of the layer is \"$engine\"" said ||
        fail "the engine $engine wanted: $(cat said)"
    echo "ok: --verbose tells the engine $engine"
done
refused 2 "--threads: '0' is not a whole number from 1" run $mean --input x.npy --output no.npy \
    --threads 0
refused 1 "threads is 1025, wanted 0..1024" run $mean --input x.npy --output no.npy --threads 1025
gives "the head width named" "5 6 5 6" --head-width 2 --kv-heads 1 --orientation out-in

succeeds "run: top-left" run $mean --input first.npy --key x.npy --value x.npy --causal \
    --output y.npy
holds y.npy 3 4
succeeds "run: bottom-right" run $mean --input first.npy --key x.npy --value x.npy --causal \
    --align bottom-right --output y.npy
holds y.npy 5 6

{ npy '|b1' '2, 2,'; bytes 0 1 1 0; } > bool.npy
{ npy '|u1' '1, 2, 2,'; bytes 0 7 1 0; } > uint8.npy
{ npy '<f4' '2, 2,'; floats 0 -inf 0 0; } > float.npy
{ npy '<f4' '1, 1, 1, 2, 2,'; floats 0 -inf 0 0; } > rank5.npy
gives "a mask that keeps" "7 8 3 4" --mask bool.npy --mask-kind keep
gives "a mask that drops" "3 4 7 8" --mask uint8.npy --mask-kind drop
gives "an additive mask" "3 4 5 6" --mask float.npy --mask-kind additive
refused 1 "mask" run $mean --input x.npy --output no.npy --mask float.npy --mask-kind keep
refused 1 "mask" run $mean --input x.npy --output no.npy --mask float.npy --mask-kind drop
refused 1 "mask" run $mean --input x.npy --output no.npy --mask bool.npy --mask-kind additive
refused 1 "mask" run $mean --input x.npy --output no.npy --mask rank5.npy --mask-kind additive

gives "all results" "3 4 5 6" --causal --weights-output w.npy --weights-mean-output m.npy
holds w.npy 1 0 0.5 0.5
shaped w.npy "[1, 2, 2]"
holds m.npy 1 0 0.5 0.5
shaped m.npy "[2, 2]"
gives "a zero key and value" "1 0 1 0" --zero-attention --key-lengths 0 --weights-output w.npy
holds w.npy 0 0 1 0 0 1
shaped w.npy "[1, 2, 3]"
gives "log-sum-exp" "1 0 1 0" --key-lengths 0 --lse-output f.npy
holds f.npy -inf -inf
shaped f.npy "[1, 2]"

succeeds "run on a batch" run $mean --input batch.npy --output y.npy --weights-output w.npy \
    --weights-mean-output m.npy --lse-output f.npy --key-lengths 1,2
holds y.npy 3 4 3 4 3 6 3 6
shaped y.npy "[2, 2, 2]"
shaped w.npy "[2, 1, 2, 2]"
shaped m.npy "[2, 2, 2]"
shaped f.npy "[2, 1, 2]"
{ npy '<i4' '2,'; little_endian 4 1; little_endian 4 2; } > lengths.npy
succeeds "run with lengths from a file" run $mean --input batch.npy --output y.npy \
    --key-lengths lengths.npy
holds y.npy 3 4 3 4 3 6 3 6
{ npy '<f2' '2, 2,'; bytes 0 0x3c 0 0x40 0 0x42 0 0x44; } > half.npy
succeeds "run on float16" run $mean --input half.npy --output y.npy
holds y.npy 5 6 5 6

# W_Q = W_K = W_V = W_O = 1, by the names of BERT: the score of (1, 2) with itself is 5 * scale.
{
    safetensors "{$(entry self.query.weight 2,2 0 16),$(entry self.key.weight 2,2 16 32),$(
        entry self.value.weight 2,2 32 48),$(entry output.dense.weight 2,2 48 64)}"
    floats 1 0 0 1 1 0 0 1 1 0 0 1 1 0 0 1
} > bert.safetensors
bert="--weights bert.safetensors --naming bert --fusion separate --heads 1"
succeeds "run --scale" run $bert --input first.npy --output y.npy --scale 1 --lse-output f.npy
holds f.npy 5
succeeds "run --scale 0" run $bert --input x.npy --output y.npy --scale 0
holds y.npy 2 3 2 3
succeeds "run --softcap" run $bert --input first.npy --output y.npy --scale 4 --softcap 0.5 \
    --lse-output f.npy
holds f.npy 0.5

# Two heads of width 1 over one key/value head: v = x0 + x1, W_O = (1 2; 0 1), and its transpose.
{
    safetensors "{$(entry in_proj_weight 4,2 0 32),$(entry out_proj.weight 2,2 32 48)}"
    floats 0 0 0 0 0 0 1 1 1 2 0 1
} > group.safetensors
group="--naming torch --heads 2 --kv-heads 1 --head-width 1 --input x.npy --output y.npy"
succeeds "run --fusion per-group" run --weights group.safetensors --fusion per-group $group
holds y.npy 15 5 15 5
{
    safetensors "{$(entry in_proj_weight 2,4 0 32),$(entry out_proj.weight 2,2 32 48)}"
    floats 0 0 0 1 0 0 0 1 1 2 0 1
} > in_out.safetensors
succeeds "run --orientation in-out" run --weights in_out.safetensors --fusion per-group $group \
    --orientation in-out
holds y.npy 5 15 5 15
succeeds "run --fusion per-head" run --weights mean.safetensors --prefix layer. --naming torch \
    --fusion per-head --heads 1 --input x.npy --output y.npy
holds y.npy 5 6 5 6

# A layer that leads from width 2 to 1: the residual sum does not fit.
{
    safetensors "{$(entry in_proj_weight 6,2 0 48),$(entry out_proj.weight 1,2 48 56)}"
    floats 0 0 0 0 0 0 0 0 1 0 0 1 1 1
} > narrow.safetensors
narrow="--weights narrow.safetensors --naming torch --fusion blocks --heads 1"
succeeds "run of a narrow layer" run $narrow --input x.npy --output y.npy
holds y.npy 5 5
refused 1 "residual" run $narrow --input x.npy --output no.npy --residual

{ npy '<f4' '2,'; floats 1 2; } > vector.npy
{ npy '<i8' '1, 2,'; little_endian 8 1; little_endian 8 2; } > whole.npy
{ npy '<f4' '1, 3,'; floats 1 2 3; } > wide.npy
refused 1 "--input vector.npy is [2]" run $mean --input vector.npy --output no.npy
refused 1 "--key batch.npy is [2, 2, 2]" run $mean --input x.npy --key batch.npy \
    --value x.npy --output no.npy
refused 1 "int64" run $mean --input whole.npy --output no.npy
refused 1 "query" run $mean --input wide.npy --output no.npy
refused 1 "missing.npy" run $mean --input missing.npy --output no.npy
refused 1 "missing.safetensors" run --weights missing.safetensors --naming torch --fusion blocks \
    --heads 1 --input x.npy --output no.npy
refused 1 "self.query.weight" run --weights mean.safetensors --naming bert --fusion separate \
    --heads 1 --input x.npy --output no.npy
refused 1 "query_lengths" run $mean --input x.npy --output no.npy --query-lengths 1,2
refused 1 "key_lengths" run $mean --input x.npy --output no.npy --key-lengths 3
refused 1 "softcap" run $mean --input x.npy --output no.npy --softcap 0
refused 1 "nowhere/y.npy" run $mean --input x.npy --output nowhere/y.npy
[ ! -e no.npy ] || fail "a run that failed has written its output"

usual="$mean --input x.npy --output no.npy"
refused 2 "--weights is needed" run
refused 2 "--naming is needed" run --weights w
refused 2 "--fusion is needed" run --weights w --naming bert
refused 2 "--heads is needed" run --weights w --naming bert --fusion blocks
refused 2 "--input is needed" run --weights w --naming bert --fusion blocks --heads 1
refused 2 "--output is needed" run $mean --input x.npy
refused 2 "--key and --value go together" run $usual --key x.npy
refused 2 "--mask and --mask-kind go together" run $usual --mask bool.npy
refused 2 "--mask and --mask-kind go together" run $usual --mask-kind keep
refused 2 "two results would be written to no.npy" run $usual --lse-output no.npy
mkdir below
ln -s below beside
ln -s ../no.npy below/link.npy # no.npy itself is not there
ln -s y.npy link.npy
refused 2 "two results would be written to ./no.npy" run $usual --lse-output ./no.npy
refused 2 "two results would be written to $work/no.npy" run $usual --lse-output "$work/no.npy"
refused 2 "two results would be written to below/../no.npy" run $usual \
    --weights-output below/../no.npy
refused 2 "two results would be written to below/link.npy" run $usual --lse-output below/link.npy
refused 2 "two results would be written to below/f.npy" run $usual --lse-output below/f.npy \
    --weights-mean-output beside/f.npy
refused 2 "two results would be written to link.npy" run $mean --input x.npy --output y.npy \
    --lse-output link.npy
gives "a name in two directories" "5 6 5 6" --lse-output below/y.npy
refused 2 "--naming: 'gpt' is none of torch, bert" run $usual --naming gpt
refused 2 "--heads: '0' is not a whole number from 1" run $usual --heads 0
refused 2 "--heads: '2x' is not a whole number" run $usual --heads 2x
refused 2 "--heads: ' 2' is not a whole number" run $usual --heads ' 2'
refused 2 "--heads: '' is not a whole number" run $usual --heads ''
refused 2 "--window-left: '-1' is not a whole number from 0" run $usual --window-left -1
refused 2 "--scale: '1,5' is not a finite float32 number" run $usual --scale 1,5
refused 2 "--scale: 'nan' is not a finite float32 number" run $usual --scale nan
refused 2 "--scale: '1e39' is not a finite float32 number" run $usual --scale 1e39
refused 2 "--scale: ' 1' is not a finite float32 number" run $usual --scale ' 1'
refused 2 "--key-lengths: '1,,2' is not a list of whole numbers" run $usual --key-lengths 1,,2
refused 2 "unexpected argument 'x.npy'" run $usual x.npy
refused 2 "unknown or ambiguous option '--dropout'" run $usual --dropout 0.1
refused 2 "option --causal takes no value" run $usual --causal=1
refused 2 "option --heads needs a value" run --heads

# ---- heatmap ----

{ npy '<f4' '2, 2,'; floats 1 0 0.5 0.5; } > square.npy
{ npy '<f4' '3, 4,'; floats 1 0 0 0 0.5 0.5 0 0 0 0 0 1; } > padded.npy
{ npy '<f4' '2, 2, 2, 2,'; floats 1 0 1 0 0 1 0 1 1 0 0.5 0.5 0.5 0.5 1 0; } > four.npy
{ npy '<f4' '2, 2, 2,'; floats 1 0 0.5 0.5 0.5 0.5 1 0; } > three.npy
{ npy '<f4' '2, 2,'; floats 1 nan 0.5 0.5; } > nan.npy

succeeds "heatmap to PNG" heatmap square.npy -o square.png
[ "$(head -c 8 square.png | od -An -tx1 | tr -d ' ')" = 89504e470d0a1a0a ] || fail "a PNG wanted"
succeeds "heatmap to SVG" heatmap square.npy --output=square.SVG
grep -q '<svg' square.SVG || fail "an SVG wanted"
succeeds "heatmap again" heatmap square.npy -o again.png
cmp -s square.png again.png || fail "the same picture wanted"

# same WHAT PICTURE ARGUMENT...: a picture made in two ways
same()
{
    local what=$1 picture=$2
    shift 2
    succeeds "heatmap: $what" heatmap -o other.png "$@"
    cmp -s "$picture" other.png || fail "$what: the same picture as $picture wanted"
}
differs()
{
    local what=$1 picture=$2
    shift 2
    succeeds "heatmap: $what" heatmap -o other.png "$@"
    ! cmp -s "$picture" other.png || fail "$what: another picture than $picture wanted"
}
same "rows and columns" square.png padded.npy --rows 2 --columns 2
succeeds "heatmap of two heads" heatmap three.npy -o heads.png
same "a sample" heads.png four.npy --sample 1
differs "the first sample" heads.png four.npy
succeeds "heatmap of one head" heatmap three.npy -o head.png --head 1
same "a sample's head" head.png four.npy --sample 1 --head 1
differs "another head" head.png four.npy --sample 1 --head 0

succeeds "heatmap of a NaN" heatmap nan.npy -o nan.svg
orange='rgb(95\.1[0-9]*%, *51\.0[0-9]*%, *22\.8[0-9]*%)' # cairo 1.16 has no spaces, 1.18 has
grep -q "$orange" nan.svg || fail "the colour of NaN wanted"
! grep -q "$orange" square.SVG || fail "no colour of NaN wanted"

printf 'one\r\ntwo' > labels
printf 'a\tb\033[1m\n\377\376 and a text that is too long to be drawn beside a row\n' > strange
printf 'one\ntwo\nthree\n' > three_labels
printf 'one\n' > one_label
printf 'a\0b\nc\n' > zero_byte
succeeds "heatmap with labels" heatmap square.npy -o labels.png --labels labels --title "A title"
succeeds "heatmap with the same labels" heatmap square.npy -o both.png --query-labels labels \
    --key-labels labels --title "A title"
cmp -s labels.png both.png || fail "the same picture wanted"
differs "without labels" labels.png square.npy --title "A title"
differs "without a title" labels.png square.npy --labels labels
succeeds "heatmap with strange labels" heatmap square.npy -o strange.png --labels strange \
    --title $'\377 and \n'
printf 'one\ntwo\nthree\nfour\n' > four_labels
succeeds "heatmap with labels beyond the crop" heatmap padded.npy -o other.png --rows 2 \
    --columns 3 --query-labels three_labels --key-labels four_labels

# A long title and long labels widen the picture; wider than cells are, they must not be cut.
read -r width height <<< "$(size_of square.png)"
long=$(printf '%0100d' 0)
succeeds "heatmap with a long title" heatmap square.npy -o long.png --title "$long"
read -r long_width long_height <<< "$(size_of long.png)"
[ "$long_width" -gt $((width + 400)) ] || fail "a wider picture than $width wanted: $long_width"
[ "$long_height" -gt "$height" ] || fail "a higher picture than $height wanted: $long_height"
echo "ok: the picture grows with its title"

{ npy '<f4' '20000, 1,'; head -c 80000 /dev/zero; } > tall.npy
{ npy '<f4' '0, 3,'; } > nothing.npy
refused 1 "more than 16384 a side; draw fewer cells with --rows and --columns" heatmap tall.npy \
    -o no.png
succeeds "heatmap of the first rows" heatmap tall.npy -o other.png --rows 300
refused 1 "there is nothing to draw" heatmap nothing.npy -o no.png
refused 1 "vector.npy is [2], must be [B, H, L, S], [H, L, S] or [L, S]" heatmap vector.npy \
    -o no.png
refused 1 "whole.npy holds int64, must hold floats" heatmap whole.npy -o no.png
refused 1 "missing.npy" heatmap missing.npy -o no.png
refused 1 "--sample: the number of samples is only 1" heatmap three.npy -o no.png --sample 1
refused 1 "--head: the number of heads is only 2" heatmap three.npy -o no.png --head 2
refused 1 "--rows: the number of queries is only 2" heatmap three.npy -o no.png --rows 3
refused 1 "--columns: the number of keys is only 2" heatmap three.npy -o no.png --columns 3
refused 1 "--labels is for as many queries as keys" heatmap padded.npy -o no.png --labels labels
refused 1 "one_label has 1 labels for 2 to draw" heatmap square.npy -o no.png --labels one_label
refused 1 "three_labels has more labels than the 2 of the axis" heatmap square.npy -o no.png \
    --labels three_labels
refused 1 "zero_byte: line 1 holds a zero byte" heatmap square.npy -o no.png --labels zero_byte
refused 1 "missing: No such file or directory" heatmap square.npy -o no.png --labels missing
refused 1 ".: Is a directory" heatmap square.npy -o no.png --labels .
refused 1 "nowhere/x.png: No such file or directory" heatmap square.npy -o nowhere/x.png
[ ! -e no.png ] || fail "a heatmap that failed has written its picture"

# A picture takes its place when it is whole.
ln -s pipe pipe.png
mkdir directory.png
refused 1 "pipe.png: not a regular file" heatmap square.npy -o pipe.png
[ -p pipe ] && [ -L pipe.png ] || fail "the pipe and its link must stay"
refused 1 "directory.png: not a regular file" heatmap square.npy -o directory.png
ln -s square.png link.png
cp square.png old.png
chmod 640 square.png
(
    trap '' XFSZ
    ulimit -f 1 # 1024 bytes
    refused 1 "link.png: File too large" heatmap three.npy -o link.png
) || exit 1
cmp -s square.png old.png || fail "the old picture wanted"
succeeds "heatmap through a link" heatmap three.npy -o link.png
cmp -s square.png heads.png || fail "the new picture wanted"
[ -L link.png ] || fail "the link must stay"
[ "$(stat -c %a square.png)" = 640 ] || fail "the permissions must stay"
ln -s new.svg dangling.svg
succeeds "heatmap through a link to nothing" heatmap three.npy -o dangling.svg
[ -L dangling.svg ] && grep -q '<svg' new.svg || fail "the link and an SVG wanted"
! ls ./*.part* 2> /dev/null || fail "drafts were left"

refused 2 "no file of weights given" heatmap -o no.png
refused 2 "--output is needed" heatmap square.npy
refused 2 "'no.jpg' ends neither in .png nor in .svg" heatmap square.npy -o no.jpg
refused 2 "option -o needs a value" heatmap square.npy -o
refused 2 "unexpected argument 'padded.npy'" heatmap square.npy padded.npy -o no.png
refused 2 "--labels goes without --query-labels and --key-labels" heatmap square.npy -o no.png \
    --labels labels --key-labels labels
refused 2 "--head: '-1' is not a whole number from 0" heatmap square.npy -o no.png --head -1

# ---- bench ----

succeeds "bench --list" bench --list
grep -Eqx 'minilm +attention +8 +12 +12 +128 +128 +32 +0 +' stdout || fail "the scene minilm wanted"
grep -Eq '^tiny-plain +plain +1 +4 +4 +16 +16 +32 +128' stdout || fail "the scene tiny-plain wanted"

# benched NUMBER ARGUMENT...: exit 0, and that many scenes have a median, a least time and a speed
benched()
{
    local wanted=$1
    shift
    run bench "$@"
    [ $status -eq 0 ] || fail "bench $*: exit status 0 wanted"
    [ "$(grep -Ec '^[a-z0-9-]+( +[0-9]+\.[0-9]+){5}' stdout)" -eq "$wanted" ] ||
        fail "bench $*: $wanted rows wanted"
    echo "ok: bench $*"
}
benched 2 --scene tiny-plain,swin --json bench.json
grep -q '"peak_gflops": [1-9]' bench.json || fail "bench.json: a peak wanted"
[ "$(grep -Ec '"(tiny-plain|swin)", .*"right": true, .*"mha_ms": [0-9]' bench.json)" -eq 2 ] ||
    fail "bench.json: two scenes wanted"
benched 1 --scene tiny-plain --isa generic
grep -q '^level      generic, 1 thread$' stdout || fail "the level generic wanted"
run bench --scene tiny-plain --json -
[ $status -eq 0 ] && [ "$(head -n 1 stdout)" = "{" ] && [ "$(tail -n 1 stdout)" = "}" ] ||
    fail "JSON and nothing else wanted on stdout"
echo "ok: bench writes JSON to the standard output"

refused 2 "'swine' holds a name that is none" bench --scene swine
refused 2 "'swin,swin' holds a name that is none, or one twice" bench --scene swin,swin
refused 2 "'' holds a name that is none" bench --scene ''
refused 2 "unexpected argument 'swin'" bench swin
refused 1 "sparc" bench --isa sparc
run bench --scene tiny-plain --json nowhere/bench.json
[ $status -eq 1 ] && tail -n 1 stderr | grep -qx 'mha bench: nowhere/bench.json: No such file .*' ||
    fail "a line about the file that cannot be made wanted"
echo "ok: bench tells of a file that cannot be made"

echo "all checks passed"
