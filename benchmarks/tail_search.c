/* Finds the draws that rare tokens win, by the noise contract of sampling/noise.py alone.
 *
 *     gcc -O3 -o /tmp/tail_search benchmarks/tail_search.c -lm
 *     /tmp/tail_search SEED CASE PURPOSE DEPTH DRAWS
 *
 * CASE: 0 to 3 are those of sampling/selftest/tails.py; 4 is acceptance with probability
 * 1 / (1 + e^19). Prints a position and its token a line (a tile in case 2; 1 for accepted, 0 for
 * the refused next above in case 4). sampling/selftest/tail_wins.py holds what it printed.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint32_t key0, key1;

static void philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t words[4]) {
    uint32_t k0 = key0, k1 = key1;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

static double uniform(uint32_t index, uint32_t position, uint32_t stream) {
    uint32_t words[4];
    philox(index >> 1, position, 0, stream, words);
    const uint32_t *own = words + 2 * (index & 1);
    double u = own[0] * 0x1p-32 + (own[1] + 0.5) * 0x1p-64;
    return fmin(u, 1.0 - 0x1p-53);
}

static double exponential(uint32_t index, uint32_t position, uint32_t stream) {
    return -log1p(-uniform(index, position, stream));
}

/* Whether any tail's uniform is so small that it could win: E_tail e^19 < E_head < 45. */
static int possible(int num_tails, uint32_t position, uint32_t stream) {
    const uint32_t limit = 1100; /* of the high word: 2.6e-7 */
    for (uint32_t block = 0; block <= (uint32_t)num_tails / 2; block++) {
        uint32_t words[4];
        philox(block, position, 0, stream, words);
        if (block > 0 && words[0] < limit) return 1;
        if (2 * block + 1 <= (uint32_t)num_tails && words[2] < limit) return 1;
    }
    return 0;
}

/* The winner among `count` racers from `first`; the weight of index i is weight(i). */
static uint32_t race(uint32_t first, uint32_t count, uint32_t position, uint32_t stream,
                     double (*weight)(uint32_t)) {
    uint32_t winner = first;
    double best = INFINITY;
    for (uint32_t i = first; i < first + count; i++) {
        double arrival = exponential(i, position, stream) / weight(i);
        if (arrival < best) best = arrival, winner = i;
    }
    return winner;
}

static double weight_19(uint32_t i) { return i ? exp(-19.0) : 1.0; }

static double tail; /* weight of each of 262,144 tails, in cases 0 and 3 */

static double weight_many(uint32_t i) { return i ? tail : 1.0; }

static double mass_many(uint32_t tile) {
    if (tile == 0) return 1.0 + 1023 * tail;
    return (tile == 256 ? 1 : 1024) * tail;
}

int main(int argc, char **argv) {
    if (argc != 6) return fprintf(stderr, "see the head of the source\n"), 2;
    uint64_t seed = strtoull(argv[1], 0, 10), draws = strtoull(argv[5], 0, 10);
    int which = atoi(argv[2]);
    uint32_t tile_stream = (uint32_t)(atoi(argv[3]) << 1 | atoi(argv[4]) << 8);
    uint32_t token_stream = tile_stream | 1;
    key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    const double accepted = 1.0 / (1.0 + exp(19.0));
    tail = exp(which == 0 ? -20.5 : -24.0);
    for (uint64_t position = 0; position < draws; position++) {
        uint32_t at = (uint32_t)position, token = 0;
        if (which == 0 || which == 3) {
            uint32_t tile = race(0, 257, at, tile_stream, mass_many);
            token = race(tile * 1024, tile == 256 ? 1 : 1024, at, token_stream, weight_many);
        } else if (which == 1) {
            if (possible(1023, at, token_stream)) token = race(0, 1024, at, token_stream, weight_19);
        } else if (which == 2) {
            if (possible(150, at, tile_stream)) token = race(0, 151, at, tile_stream, weight_19);
        } else {
            double u = uniform(0, at, tile_stream);
            if (u < 48 * 0x1p-32) printf("%llu %d\n", (unsigned long long)position, u < accepted);
        }
        if (token) printf("%llu %u\n", (unsigned long long)position, token);
    }
    return 0;
}
