#!/bin/sh
# SPDX-License-Identifier: MIT
# Answers like bench/peer.py, for the test of attocl bench --compare: 1.5 ms, no counterpart, nonsense, in turns;
# then it ends without a word.
echo "fake 1.0"
n=0
while read -r question; do
    case $question in
        *'"peer": "torch", "op": "'*'"dtype": "f32"'*'"shape": ['*']}') ;;
        *) echo "- not understood: $question" && continue ;;
    esac
    n=$((n + 1))
    case $n in
        1) echo 1.5 ;;
        2) echo "- no counterpart" ;;
        3) echo "1.5 apples" ;;
        *) exit 3 ;;
    esac
done
