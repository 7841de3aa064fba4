#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Plants the faults of scripts/mutations.txt one at a time and demands that the tests notice each.
#
#   scripts/mutate.sh            all of them, in a scratch copy of the tree (build/mutate)
#   scripts/mutate.sh TEXT       only those whose file or reason contains TEXT
#   scripts/mutate.sh --check    builds nothing: each fault still has its place in the sources
#
# A fault is killed (a test failed or hung), survives (the gate fails), or is equivalent (listed as
# such: no test can notice it). Exit status 0 when none survived and all of them still apply.

set -euo pipefail
source "$(dirname "$0")/common.sh"

list=$root/scripts/mutations.txt
tree=$root/build/mutate/tree
built=$root/build/mutate/build
limit=240 # seconds for the tests of one fault; a hang is noticed too

# Reads the next record of standard input into file, old, new, judges, why and kind.
next_record()
{
    local key value
    file='' old='' new='' judges='' why='' kind=fault
    while read -r key value; do
        case $key in
            file)
                [ -z "$file" ] || die "mutations.txt: no blank line before file $value"
                file=$value
                ;;
            old) old=$value ;;
            new) new=$value ;;
            test) judges=$value ;;
            why) why=$value ;;
            equivalent) kind=equivalent ;;
            '') [ -z "$file" ] || return 0 ;;
            '#'*) ;;
            *) die "mutations.txt: unknown key '$key'" ;;
        esac
    done
    [ -n "$file" ]
}

# plant FOLDER: replaces the text old, which must occur exactly once in the file, by the text new.
plant()
{
    local path=$1/$file text
    has_place "$path" || return 1
    text=$(cat "$path" && printf x)
    text=${text%%"$old"*}$new${text#*"$old"}
    printf '%s' "${text%x}" > "$path"
}

# has_place PATH: whether the text old occurs exactly once there.
has_place()
{
    local count
    [ -f "$1" ] || { echo "no such file" && return 1; }
    count=$([ -z "$old" ] || grep -oF -- "$old" "$1" | wc -l)
    case ${count:-0} in
        1) ;;
        0) echo "its text is gone: $old" && return 1 ;;
        *) echo "its text occurs more than once: $old" && return 1 ;;
    esac
}

# A copy of the tracked files and of those not yet added. Their time is now (-m), since a fault of
# an interrupted run may have been built.
copy_tree()
{
    mkdir -p "$tree"
    (cd "$root" && git ls-files -z --cached --others --exclude-standard | tar -c --null -T -) |
        tar -x -m -C "$tree"
}

compile() { cmake --build "$built" -j "$jobs" > "$built/log" 2>&1; }

# run_tests SECONDS: those that $judges names; also fails when they take too long.
run_tests()
{
    timeout -k 5 "$1" ctest --test-dir "$built" --no-tests=error --stop-on-failure -j "$jobs" \
        -R "$judges" > "$built/log" 2>&1
}

# Names of the tests that any record mentions; each of its expressions must name one.
judging_tests()
{
    local expression names
    sed -n 's/^test  *//p' "$list" | sort -u | while read -r expression; do
        names=$(ctest --test-dir "$built" -N -R "$expression" | sed -n 's/^ *Test *#[0-9]*: //p')
        [ -n "$names" ] || die "no test is named like $expression"
        printf '%s\n' "$names"
    done | sort -u
}

# Before any fault: it builds, and the tests that will judge pass.
baseline()
{
    local judges
    say "baseline"
    quiet cmake -S "$tree" -B "$built" -G Ninja -DCMAKE_BUILD_TYPE=Release -DATTO_WERROR=OFF \
        -DATTO_BUILD_BENCH=OFF -DATTO_BUILD_TOOLS=OFF
    compile || die "$(tail -n 30 "$built/log")"
    judges="^($(judging_tests | paste -s -d '|'))\$"
    run_tests 1200 || die "the tests fail without any fault: $(tail -n 40 "$built/log")"
}

# judge: plants the current record, builds, tests, and puts the file back. Prints the verdict.
judge()
{
    cp -p "$tree/$file" "$built/original"
    if ! plant "$tree"; then
        return
    fi
    if ! compile; then
        echo "does not compile"
    elif run_tests "$limit"; then
        [ "$kind" = equivalent ] && echo equivalent || echo SURVIVED
    else
        echo killed
    fi
    cp "$built/original" "$tree/$file"
}

# Whether each fault has its place, without building anything.
check_places()
{
    local count=0 bad=0 problem
    while next_record; do
        count=$((count + 1))
        if ! problem=$(has_place "$root/$file"); then
            printf '%s: %s (%s)\n' "$file" "$problem" "$why"
            bad=$((bad + 1))
        fi
    done < "$list"
    say "$count faults listed, $bad without a place"
    [ "$bad" = 0 ]
}

run_all()
{
    local wanted=$1 killed=0 equivalent=0 bad=0 verdict
    only_pocl
    copy_tree
    list=$tree/scripts/mutations.txt # which nobody edits meanwhile
    baseline
    while next_record <&3; do
        [[ "$file $why" == *"$wanted"* ]] || continue
        verdict=$(judge < /dev/null)
        printf '%-10s %s: %s\n' "$verdict" "$file" "$why"
        case $verdict in
            killed) killed=$((killed + 1)) ;;
            equivalent) equivalent=$((equivalent + 1)) ;;
            *) bad=$((bad + 1)) ;;
        esac
    done 3< "$list"
    say "$killed killed, $equivalent equivalent, $bad survived or did not apply"
    [ "$bad" = 0 ] && [ $((killed + equivalent)) -gt 0 ]
}

case ${1:-} in
    --check) check_places ;;
    --help) usage ;;
    *) run_all "${1:-}" ;;
esac
