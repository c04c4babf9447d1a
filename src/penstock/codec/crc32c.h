/* CRC-32C (Castagnoli): by the CPU's instruction where it has one, else by tables.
 *
 * A "state" is the running register without the inversions at both ends. As a polynomial over
 * GF(2), a state after n more bytes is state * x^(8n) + (what the bytes add): so runs can be
 * computed side by side and put together later, which crc32c_shift does.
 *
 * crc32c_init() must have run before anything else; it is called when the module is imported.
 */
#ifndef PENSTOCK_CRC32C_H
#define PENSTOCK_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC32C_POLYNOMIAL 0x82F63B78u /* reflected: the highest bit is x^0 */
#define CRC32C_LANE 512u              /* bytes of each of the three runs done side by side */
#define CRC32C_SHORT 128u             /* the same where less is left: most messages are short */

static uint32_t crc32c_tables[8][256];   /* [k][b]: byte b, then k zero bytes */
static uint32_t crc32c_powers[8][16];    /* [k][d]: x^(8 * d * 16^k) */
static uint32_t crc32c_lane[4][256];     /* [k][b]: byte k of a state, CRC32C_LANE bytes on */
static uint32_t crc32c_short[4][256];    /* the same, CRC32C_SHORT bytes on */
static int crc32c_has_instruction;

/* -- tables ------------------------------------------------------------------------------------ */

static uint32_t crc32c_portable(uint32_t state, const uint8_t *data, size_t count)
{
    while (count >= 8) {
        uint32_t low = state ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 |
                                (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        state = crc32c_tables[7][low & 0xFF] ^ crc32c_tables[6][low >> 8 & 0xFF] ^
                crc32c_tables[5][low >> 16 & 0xFF] ^ crc32c_tables[4][low >> 24] ^
                crc32c_tables[3][data[4]] ^ crc32c_tables[2][data[5]] ^
                crc32c_tables[1][data[6]] ^ crc32c_tables[0][data[7]];
        data += 8;
        count -= 8;
    }
    while (count--)
        state = crc32c_tables[0][(state ^ *data++) & 0xFF] ^ state >> 8;
    return state;
}

static uint32_t crc32c_multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (int bit = 0; bit < 32; bit++) {
        product ^= b & (0u - (a >> 31));
        a <<= 1;
        b = b >> 1 ^ (CRC32C_POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

/* The state after `count` (below 2^32) zero bytes. */
static uint32_t crc32c_shift(uint32_t state, uint64_t count)
{
    for (int k = 0; k < 8; k++) {
        unsigned digit = (unsigned)(count >> 4 * k) & 15;
        if (digit)
            state = crc32c_multiply(state, crc32c_powers[k][digit]);
    }
    return state;
}

/* -- the CPU's instruction --------------------------------------------------------------------- */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <nmmintrin.h>
#define CRC32C_TARGET __attribute__((target("sse4.2")))
#define CRC32C_8(state, word) ((uint32_t)_mm_crc32_u64((state), (word)))
#define CRC32C_1(state, byte) _mm_crc32_u8((state), (byte))

static int crc32c_detect(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2") != 0;
}

#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__) && \
    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <arm_acle.h>
#include <sys/auxv.h>
#ifdef __clang__
#define CRC32C_TARGET __attribute__((target("crc")))
#else
#define CRC32C_TARGET __attribute__((target("+crc")))
#endif
#define CRC32C_8(state, word) __crc32cd((state), (word))
#define CRC32C_1(state, byte) __crc32cb((state), (byte))

static int crc32c_detect(void)
{
    return (getauxval(AT_HWCAP) >> 7 & 1) != 0; /* HWCAP_CRC32 */
}

#else
static int crc32c_detect(void)
{
    return 0;
}
#endif

#ifdef CRC32C_TARGET
static inline uint64_t crc32c_word(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

static inline uint32_t crc32c_shift_lane(uint32_t lane[4][256], uint32_t state)
{
    return lane[0][state & 0xFF] ^ lane[1][state >> 8 & 0xFF] ^ lane[2][state >> 16 & 0xFF] ^
           lane[3][state >> 24];
}

/* The instruction answers after three cycles but can start each cycle: hence three runs. */
CRC32C_TARGET static inline uint32_t crc32c_three(
    uint32_t state, const uint8_t *data, size_t size, uint32_t lane[4][256])
{
    uint32_t second = 0, third = 0;
    for (const uint8_t *stop = data + size; data < stop; data += 8) {
        state = CRC32C_8(state, crc32c_word(data));
        second = CRC32C_8(second, crc32c_word(data + size));
        third = CRC32C_8(third, crc32c_word(data + 2 * size));
    }
    return crc32c_shift_lane(lane, crc32c_shift_lane(lane, state) ^ second) ^ third;
}

CRC32C_TARGET static uint32_t crc32c_cpu(uint32_t state, const uint8_t *data, size_t count)
{
    for (; count >= 3 * CRC32C_LANE; data += 3 * CRC32C_LANE, count -= 3 * CRC32C_LANE)
        state = crc32c_three(state, data, CRC32C_LANE, crc32c_lane);
    for (; count >= 3 * CRC32C_SHORT; data += 3 * CRC32C_SHORT, count -= 3 * CRC32C_SHORT)
        state = crc32c_three(state, data, CRC32C_SHORT, crc32c_short);
    for (; count >= 8; data += 8, count -= 8)
        state = CRC32C_8(state, crc32c_word(data));
    while (count--)
        state = CRC32C_1(state, *data++);
    return state;
}
#endif

static inline uint32_t crc32c_update(uint32_t state, const uint8_t *data, size_t count)
{
#ifdef CRC32C_TARGET
    if (crc32c_has_instruction)
        return crc32c_cpu(state, data, count);
#endif
    return crc32c_portable(state, data, count);
}

/* The finished checksum of a run. */
static inline uint32_t crc32c_of(const uint8_t *data, size_t count)
{
    return ~crc32c_update(0xFFFFFFFFu, data, count);
}

static void crc32c_init(void)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++)
            state = state >> 1 ^ (CRC32C_POLYNOMIAL & (0u - (state & 1)));
        crc32c_tables[0][byte] = state;
    }
    for (int k = 1; k < 8; k++)
        for (unsigned byte = 0; byte < 256; byte++) {
            uint32_t state = crc32c_tables[k - 1][byte];
            crc32c_tables[k][byte] = crc32c_tables[0][state & 0xFF] ^ state >> 8;
        }
    uint32_t unit = 0x00800000u; /* x^8 */
    for (int k = 0; k < 8; k++) {
        crc32c_powers[k][0] = 0x80000000u; /* x^0 */
        for (int digit = 1; digit < 16; digit++)
            crc32c_powers[k][digit] = crc32c_multiply(crc32c_powers[k][digit - 1], unit);
        unit = crc32c_multiply(crc32c_powers[k][15], unit);
    }
    for (int k = 0; k < 4; k++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            crc32c_lane[k][byte] = crc32c_shift(byte << 8 * k, CRC32C_LANE);
            crc32c_short[k][byte] = crc32c_shift(byte << 8 * k, CRC32C_SHORT);
        }
    crc32c_has_instruction = crc32c_detect();
}

#endif
