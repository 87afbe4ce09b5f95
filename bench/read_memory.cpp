// Reads memory once, as fast as all threads together can.
//
// build: -fopenmp

#include <cstdint>

// The sum, so that nothing is left out.
extern "C" uint64_t read_memory(const uint64_t *words, int64_t num_words) {
    uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int64_t i = 0; i < num_words; ++i) sum += words[i];
    return sum;
}
