// Where OpenMP's threads run. Each asks for itself: nobody else knows which of the process's
// threads they are.

#include <omp.h>
#include <sched.h>

// Lets each of `num_threads` threads, the caller among them, run on any of these cores; or, bound,
// on the core of its own number, of which there is one then. Answers how many could not be placed.
extern "C" int tandem_place_threads(int num_threads, int is_bound, int num_cores,
                                    const int *cores) {
    int num_failed = 0;
#pragma omp parallel num_threads(num_threads) reduction(+ : num_failed)
    {
        const int thread = omp_get_thread_num();
        cpu_set_t allowed;
        CPU_ZERO(&allowed);
        for (int i = 0; i < num_cores; ++i) {
            if (!is_bound || i == thread) CPU_SET(cores[i], &allowed);
        }
        num_failed = sched_setaffinity(0, sizeof(allowed), &allowed) != 0;
    }
    return num_failed;
}
