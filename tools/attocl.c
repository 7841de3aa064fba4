/* SPDX-License-Identifier: MIT */
/* The attocl command: what is here (info), does it compute right (selftest), how fast (bench). */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(_WIN32)
#include <io.h>
#define isatty _isatty
#else
#include <unistd.h>
#endif

#include "tool.h"

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *text;
} command;

static const command commands[] = {
    { "info", tool_info, "devices, limits, drivers, kernel cache" },
    { "selftest", tool_selftest, "compare a device with the plain CPU code" },
    { "bench", tool_bench, "measure ops against what the memory allows" },
    { "tune", tool_tune, "find the fastest way to run ops on a device, and remember it" },
};

#define COMMANDS (sizeof commands / sizeof commands[0])

static int help(FILE *out)
{
    fputs("Usage: attocl COMMAND [OPTION]...\n\nCommands:\n", out);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].text);
    fputs("\nOptions:\n"
          "  --help     this text; `attocl COMMAND --help` has the options of a command\n"
          "  --version  version of the library\n"
          "\nExit status: 0 success, 1 something failed, 2 wrong usage.\n",
          out);
    return out == stdout ? TOOL_OK : TOOL_USAGE;
}

/* getopt's own messages begin with argv[0]. */
static int run_command(const command *c, int argc, char **argv)
{
    char name[64];
    snprintf(name, sizeof name, "attocl %s", c->name);
    argv[1] = name;
    return c->run(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    if (argc < 2) return help(stderr);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0)
        return help(stdout);
    if (strcmp(argv[1], "--version") == 0) {
        printf("attocl %s\n", atto_version());
        return TOOL_OK;
    }
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return run_command(&commands[i], argc, argv);
    fprintf(stderr, "attocl: no command '%s'; try attocl --help\n", argv[1]);
    return TOOL_USAGE;
}

int tool_fail(const char *doing, atto_status status)
{
    const char *message = atto_last_error();
    fprintf(stderr, "attocl: %s: %s: %s\n", doing, atto_status_name(status),
            *message ? message : atto_status_text(status));
    return TOOL_FAILED;
}

int tool_misuse(const char *command_name, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "attocl %s: ", command_name);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "; try attocl %s --help\n", command_name);
    va_end(arguments);
    return TOOL_USAGE;
}

int tool_bad_option(const char *command_name)
{
    fprintf(stderr, "try attocl %s --help\n", command_name);
    return TOOL_USAGE;
}

bool tool_can_write(const char *path)
{
    if (strcmp(path, "-") == 0) return true;
    FILE *there = fopen(path, "r");
    FILE *file = fopen(path, "a");
    if (!file) fprintf(stderr, "attocl: %s: %s\n", path, strerror(errno));
    if (file) fclose(file);
    if (there) fclose(there);
    if (file && !there) remove(path);
    return file != NULL;
}

void tool_progress(const char *format, ...)
{
    va_list arguments;
    if (!isatty(2)) return;
    fprintf(stderr, "\r%70s\r", "");
    va_start(arguments, format);
    if (format != NULL) vfprintf(stderr, format, arguments);
    va_end(arguments);
    fflush(stderr);
}

int64_t tool_parse_count(const char *text, int64_t max)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < 1 || value > max) return 0;
    return value;
}

atto_dtype tool_parse_dtype(const char *text)
{
    for (int dtype = ATTO_F32; dtype <= ATTO_BF16; dtype++)
        if (strcmp(text, atto_dtype_name((atto_dtype)dtype)) == 0) return (atto_dtype)dtype;
    return (atto_dtype)0;
}

atto_device_info *tool_list(const atto_device_options *options, int32_t *count)
{
    atto_status status = atto_device_list(options, NULL, 0, count);
    if (status != ATTO_OK) {
        tool_fail("listing devices", status);
        return NULL;
    }
    const int32_t capacity = *count;
    atto_device_info *infos = calloc((size_t)capacity, sizeof *infos);
    if (infos == NULL) {
        fputs("attocl: out of memory\n", stderr);
        return NULL;
    }
    status = atto_device_list(options, infos, capacity, count);
    if (*count > capacity) *count = capacity;
    if (status == ATTO_OK) return infos;
    tool_fail("listing devices", status);
    free(infos);
    return NULL;
}

void tool_json_header(json *j, const atto_device_info *info)
{
    char date[32];
    const time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    json_string(j, "attocl", atto_version());
    json_string(j, "date", date);
    json_string(j, "device", info->name);
    json_string(j, "vendor", info->vendor);
    json_string(j, "backend", info->backend);
    json_string(j, "platform", info->platform);
    json_string(j, "version", info->version);
    json_string(j, "driver", info->driver);
}
