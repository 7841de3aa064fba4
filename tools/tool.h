/* SPDX-License-Identifier: MIT */
/* What the subcommands of `attocl` share. Exit codes: 0 success, 1 a check failed or the device
 * did, 2 the command line is wrong. */
#ifndef ATTO_TOOL_H
#define ATTO_TOOL_H

#include <attocl.h>

#include "json.h"

enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

/* argv[0] is the name of the subcommand. */
int tool_info(int argc, char **argv);
int tool_selftest(int argc, char **argv);
int tool_bench(int argc, char **argv);
int tool_tune(int argc, char **argv);

/* Parts of tool_bench and tool_selftest with files of their own. */
int tool_cpu_math(const char *at_most, const char *json_path);
int tool_first_call(const char *device, const char *json_path);
int tool_first_call_child(const char *device);
int tool_selftest_huge(const char *device, int64_t elements);

/* "attocl: doing: <status>: <message>" on stderr; returns TOOL_FAILED. */
int tool_fail(const char *doing, atto_status status);

/* "attocl <command>: message" and a hint at --help on stderr; returns TOOL_USAGE. */
int tool_misuse(const char *command, const char *format, ...);

/* After getopt_long has said what is wrong: the hint alone; returns TOOL_USAGE. */
int tool_bad_option(const char *command);

/* Whether a file can be written there, before there is something to write; complains if not. "-"
 * can. */
bool tool_can_write(const char *path);

/* A line on stderr that the next call overwrites, on a terminal only; NULL removes it. */
void tool_progress(const char *format, ...);

/* A whole positive number of at most max; 0 when the text is none. */
int64_t tool_parse_count(const char *text, int64_t max);

/* "f32" and so on; 0 when the name is none. */
atto_dtype tool_parse_dtype(const char *text);

/* All devices from malloc; NULL with a message on stderr. */
atto_device_info *tool_list(const atto_device_options *options, int32_t *count);

/* Device, driver, versions and date as members of the open object. */
void tool_json_header(json *j, const atto_device_info *info);

#endif
