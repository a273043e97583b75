/* A file that is cut off while it is mapped. The system then ends a process that reads beyond its
 * end, with a signal and no word; here it says what happened, and ends as after any other bad input. */
#define _POSIX_C_SOURCE 200809L

#include "native.h"

#include <signal.h>
#include <unistd.h>

enum { BAD_INPUT = 3 };

static char said[512];

static void end(int number) {
    (void)number;
    ssize_t written = write(STDERR_FILENO, said, strlen(said));
    (void)written;
    _exit(BAD_INPUT);
}

/* Say this instead of dying in silence, unless somebody else has taken the signal already. */
EXPORT void driftwalk_when_cut_off(const char *text) {
    struct sigaction then = {0}, now = {0};
    strncpy(said, text, sizeof said - 1);
    if (sigaction(SIGBUS, NULL, &then) != 0 || then.sa_handler != SIG_DFL)
        return;
    now.sa_handler = end;
    sigemptyset(&now.sa_mask);
    sigaction(SIGBUS, &now, NULL);
}
