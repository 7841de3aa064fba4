#!/bin/sh
# SPDX-License-Identifier: MIT
# A peer that says what it is and then nothing more, for the test of attocl bench --timeout.
echo "slow 1.0"
read -r _
exec sleep 30
