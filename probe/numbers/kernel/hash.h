/* XXH3, 128 bits, seed 0, as its specification states it (xxHash, doc/xxhash_spec.md, version 0.2.0): of memory that is read
 * piece by piece, so that the loop over a tensor can hash what it has in the cache.
 */
#define BLOCK 1024 /* bytes; as many stripes of 64 as the secret has places for */
#define STRIPES 16
#define SECRET 192

static const uint64_t P32_1 = 0x9E3779B1, P32_2 = 0x85EBCA77, P32_3 = 0xC2B2AE3D, P64_1 = 0x9E3779B185EBCA87,
                      P64_2 = 0xC2B2AE3D27D4EB4F, P64_3 = 0x165667B19E3779F9, P64_4 = 0x85EBCA77C2B2AE63,
                      P64_5 = 0x27D4EB2F165667C5, MIX_1 = 0x165667919E3779F9, MIX_2 = 0x9FB21C651E98DF25;

static const uint8_t secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9,
    0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78,
    0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f,
    0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff,
    0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

typedef struct {
    uint64_t low, high;
} Digest;

typedef struct {
    uint64_t sums[8];
    int64_t size, left, waiting; /* bytes in all; of them those that were not there yet, and those that were, and wait for a whole block */
} Hash;

static inline uint32_t word32(const uint8_t *p)
{
    uint32_t value;
    memcpy(&value, p, 4);
    return value;
}

static inline uint64_t word64(const uint8_t *p)
{
    uint64_t value;
    memcpy(&value, p, 8);
    return value;
}

/* The two halves of a product of 128 bits, one upon the other. */
static inline uint64_t folded(uint64_t a, uint64_t b)
{
    const unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t avalanche(uint64_t x)
{
    x = (x ^ x >> 37) * MIX_1;
    return x ^ x >> 32;
}

static inline uint64_t avalanche_64(uint64_t x)
{
    x = (x ^ x >> 33) * P64_2;
    x = (x ^ x >> 29) * P64_3;
    return x ^ x >> 32;
}

/* Stripes of one block, from its beginning: their words, and the products of their halves. */
static void stripes_plain(uint64_t *sums, const uint8_t *p, int64_t count)
{
    for (int64_t n = 0; n < count; n++, p += 64) {
        for (int i = 0; i < 8; i++) {
            const uint64_t word = word64(p + 8 * i), mixed = word ^ word64(secret + 8 * n + 8 * i);
            sums[i ^ 1] += word;
            sums[i] += (mixed & 0xFFFFFFFF) * (mixed >> 32);
        }
    }
}

static void blocks_plain(uint64_t *sums, const uint8_t *p, int64_t count)
{
    for (; count > 0; count--, p += BLOCK) {
        stripes_plain(sums, p, STRIPES);
        for (int i = 0; i < 8; i++)
            sums[i] = (sums[i] ^ sums[i] >> 47 ^ word64(secret + SECRET - 64 + 8 * i)) * P32_1;
    }
}

#if defined(__x86_64__)
#define BLOCKS(name, features, words, size, load, store, xor, add, multiply, shift, swap, set)                          \
    __attribute__((target(features))) static void blocks_##name(uint64_t *sums, const uint8_t *p, int64_t count)        \
    {                                                                                                                   \
        enum { PARTS = 64 / size };                                                                                     \
        words acc[PARTS];                                                                                               \
        const words prime = set((int)P32_1);                                                                            \
        for (int i = 0; i < PARTS; i++) acc[i] = load((const void *)(sums + i * size / 8));                             \
        for (; count > 0; count--) {                                                                                    \
            for (int n = 0; n < STRIPES; n++, p += 64) {                                                                \
                for (int i = 0; i < PARTS; i++) {                                                                       \
                    const words word = load((const void *)(p + i * size));                                              \
                    const words mixed = xor(word, load((const void *)(secret + 8 * n + i * size)));                     \
                    acc[i] = add(acc[i], add(multiply(mixed, shift(mixed, 32)), swap(word, 0x4E)));                     \
                }                                                                                                       \
            }                                                                                                           \
            for (int i = 0; i < PARTS; i++) {                                                                           \
                const words key = load((const void *)(secret + SECRET - 64 + i * size));                                \
                const words mixed = xor(xor(acc[i], shift(acc[i], 47)), key);                                           \
                const words upper = multiply(shift(mixed, 32), prime);                                                  \
                acc[i] = add(multiply(mixed, prime), left_##name(upper, 32));                                           \
            }                                                                                                           \
        }                                                                                                               \
        for (int i = 0; i < PARTS; i++) store((void *)(sums + i * size / 8), acc[i]);                                   \
    }
#define left_avx2 _mm256_slli_epi64
#define left_avx512 _mm512_slli_epi64
BLOCKS(avx2, "avx2", __m256i, 32, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_xor_si256, _mm256_add_epi64,
       _mm256_mul_epu32, _mm256_srli_epi64, _mm256_shuffle_epi32, _mm256_set1_epi32)
BLOCKS(avx512, "avx512f", __m512i, 64, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_xor_si512, _mm512_add_epi64,
       _mm512_mul_epu32, _mm512_srli_epi64, _mm512_shuffle_epi32, _mm512_set1_epi32)
#endif

typedef void (*Blocks)(uint64_t *, const uint8_t *, int64_t);
static Blocks blocks = blocks_plain;

static void hash_start(Hash *hash, int64_t size)
{
    const uint64_t sums[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    memcpy(hash->sums, sums, sizeof sums);
    hash->size = hash->left = size;
    hash->waiting = 0;
}

/* Read on as far as `end`, `more` bytes behind the last time, in whole blocks; the last one, were it whole, is left to `hash_end`. What
 * waits must lie before `end` the next time. */
static inline void hash_until(Hash *hash, const void *end, int64_t more)
{
    hash->waiting += more;
    hash->left -= more;
    const int64_t whole = (hash->left ? hash->waiting : hash->waiting - 1) / BLOCK;
    if (whole > 0) {
        blocks(hash->sums, (const uint8_t *)end - hash->waiting, whole);
        hash->waiting -= whole * BLOCK;
    }
}

static Digest digest_small(const uint8_t *p, uint64_t size)
{
    if (!size)
        return (Digest){avalanche_64(word64(secret + 64) ^ word64(secret + 72)),
                        avalanche_64(word64(secret + 80) ^ word64(secret + 88))};
    if (size <= 3) {
        const uint32_t all = p[size - 1] | (uint32_t)size << 8 | (uint32_t)p[0] << 16 | (uint32_t)p[size >> 1] << 24;
        const uint32_t turned = __builtin_bswap32(all);
        return (Digest){avalanche_64((word32(secret) ^ word32(secret + 4)) ^ (uint64_t)all),
                        avalanche_64((word32(secret + 8) ^ word32(secret + 12)) ^ (uint64_t)(turned << 13 | turned >> 19))};
    }
    if (size <= 8) {
        const uint64_t both = word32(p) | (uint64_t)word32(p + size - 4) << 32;
        const unsigned __int128 product = (unsigned __int128)(both ^ word64(secret + 16) ^ word64(secret + 24))
                                          * (P64_1 + (size << 2));
        uint64_t low = (uint64_t)product, high = (uint64_t)(product >> 64) + (low << 1);
        low ^= high >> 3;
        low = (low ^ low >> 35) * MIX_2;
        return (Digest){low ^ low >> 28, avalanche(high)};
    }
    const uint64_t first = word64(p), last = word64(p + size - 8);
    const uint64_t a = word64(secret + 32) ^ word64(secret + 40) ^ first ^ last;
    const uint64_t b = word64(secret + 48) ^ word64(secret + 56) ^ last;
    const unsigned __int128 product = (unsigned __int128)a * P64_1;
    const uint64_t low = (uint64_t)product + ((size - 1) << 54);
    const uint64_t high = (uint64_t)(product >> 64) + b + (b & 0xFFFFFFFF) * (P32_2 - 1);
    const unsigned __int128 again = (unsigned __int128)(low ^ __builtin_bswap64(high)) * P64_2;
    return (Digest){avalanche((uint64_t)again), avalanche((uint64_t)(again >> 64) + high * P64_2)};
}

/* Two pieces of 16 bytes, with 32 of the secret. */
static inline void mix(Digest *sums, const uint8_t *p, const uint8_t *q, const uint8_t *key)
{
    sums->low += folded(word64(p) ^ word64(key), word64(p + 8) ^ word64(key + 8));
    sums->high += folded(word64(q) ^ word64(key + 16), word64(q + 8) ^ word64(key + 24));
    sums->low ^= word64(q) + word64(q + 8);
    sums->high ^= word64(p) + word64(p + 8);
}

static Digest digest_medium(const uint8_t *p, int64_t size)
{
    Digest sums = {(uint64_t)size * P64_1, 0};
    if (size <= 128) {
        for (int64_t i = (size - 1) / 32; i >= 0; i--) mix(&sums, p + 16 * i, p + size - 16 * i - 16, secret + 32 * i);
    } else {
        for (int64_t i = 0; i < 4; i++) mix(&sums, p + 32 * i, p + 32 * i + 16, secret + 32 * i);
        sums = (Digest){avalanche(sums.low), avalanche(sums.high)};
        for (int64_t i = 4; i < size / 32; i++) mix(&sums, p + 32 * i, p + 32 * i + 16, secret + 32 * (i - 4) + 3);
        mix(&sums, p + size - 16, p + size - 32, secret + 103); /* (the specification's −seed is 0) */
    }
    return (Digest){avalanche(sums.low + sums.high),
                    -avalanche(sums.low * P64_1 + sums.high * P64_4 + (uint64_t)size * P64_2)};
}

static uint64_t merged(const uint64_t *sums, uint64_t value, const uint8_t *key)
{
    for (int i = 0; i < 8; i += 2) value += folded(sums[i] ^ word64(key + 8 * i), sums[i + 1] ^ word64(key + 8 * i + 8));
    return avalanche(value);
}

/* Read what is left, as far as `end`; return the hash of all. At least 64 bytes must lie before `end`, or all. */
static Digest hash_end(Hash *hash, const void *behind)
{
    const uint8_t *end = behind;
    const uint64_t size = (uint64_t)hash->size;
    if (size <= 16) return digest_small(end - size, size);
    if (size <= 240) return digest_medium(end - size, hash->size);
    hash_until(hash, end, hash->left);
    stripes_plain(hash->sums, end - hash->waiting, (hash->waiting - 1) / 64);
    for (int i = 0; i < 8; i++) {
        const uint64_t word = word64(end - 64 + 8 * i), mixed = word ^ word64(secret + SECRET - 71 + 8 * i);
        hash->sums[i ^ 1] += word;
        hash->sums[i] += (mixed & 0xFFFFFFFF) * (mixed >> 32);
    }
    return (Digest){merged(hash->sums, size * P64_1, secret + 11),
                    merged(hash->sums, ~(size * P64_2), secret + SECRET - 75)};
}

static Digest digest_of(const void *start, int64_t size)
{
    Hash hash;
    hash_start(&hash, size);
    return hash_end(&hash, (const char *)start + size);
}
