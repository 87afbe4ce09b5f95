// Lets a thread that computes leave its core for a moment, again and again.
//
// build: generic

#include <cerrno>
#include <csignal>
#include <ctime>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace {

constexpr long long kSecond = 1000000000LL;
// The kernel may let a sleeper sleep for so much longer.
constexpr unsigned long kSlack = 1000UL;

// As gettid(), which older libraries have not.
pid_t thread_id() { return static_cast<pid_t>(syscall(SYS_gettid)); }

struct Yield {
    timer_t timer;
    // Whose timer it is, if there is one. A fork has its parent's memory and none of its timers.
    pid_t thread = 0;
    long long every_ns = 0, pause_ns = 0;
    long long due_ns = 0;  // of computing

    ~Yield() {
        if (thread == thread_id()) timer_delete(timer);
    }
};

thread_local Yield state;

long long now_ns(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * kSecond + now.tv_nsec;
}

timespec as_timespec(long long ns) {
    return {static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
}

// The timer rings by the wall's clock, also while the thread waits for a core; what counts is what
// it has computed.
void rest(int) {
    if (now_ns(CLOCK_THREAD_CPUTIME_ID) < state.due_ns) return;
    const int kept = errno;
    const timespec pause = as_timespec(state.pause_ns);
    nanosleep(&pause, nullptr);
    state.due_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) + state.every_ns;
    errno = kept;
}

int begin() {
    const int number = SIGRTMIN + 8;
    struct sigaction action = {};
    action.sa_handler = rest;
    action.sa_flags = SA_RESTART;
    if (sigaction(number, &action, nullptr) != 0) return errno;
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = number;
    event.sigev_notify_thread_id = thread_id();
    if (timer_create(CLOCK_MONOTONIC, &event, &state.timer) != 0) return errno;
    state.thread = thread_id();
    prctl(PR_SET_TIMERSLACK, kSlack);
    return 0;
}

}  // namespace

// From now on the calling thread sleeps for `pause_ns` each time that it has computed for
// `every_ns`. `every_ns` 0: it does so no longer. Answers 0 or an errno.
extern "C" int tandem_yield(long long every_ns, long long pause_ns) {
    if (state.thread != thread_id()) {
        if (every_ns == 0) return 0;
        if (const int error = begin()) return error;
    }
    state.every_ns = every_ns;
    state.pause_ns = pause_ns;
    state.due_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) + every_ns;
    const timespec ring = as_timespec(every_ns / 2);
    const itimerspec rings = {ring, ring};
    return timer_settime(state.timer, 0, &rings, nullptr) == 0 ? 0 : errno;
}
