/* Numbers of the format, wherever they lie: little-endian and not aligned. */
#ifndef PENSTOCK_LITTLE_ENDIAN_H
#define PENSTOCK_LITTLE_ENDIAN_H

#include <stdint.h>
#include <string.h>

/* Compilers turn these into single moves where the machine is little-endian itself. */
static inline uint16_t load_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static inline uint32_t load_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t load_u64(const uint8_t *at)
{
    return load_u32(at) | (uint64_t)load_u32(at + 4) << 32;
}

static inline void store_u16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static inline void store_u32(uint8_t *at, uint32_t value)
{
    store_u16(at, (uint16_t)value);
    store_u16(at + 2, (uint16_t)(value >> 16));
}

static inline void store_u64(uint8_t *at, uint64_t value)
{
    store_u32(at, (uint32_t)value);
    store_u32(at + 4, (uint32_t)(value >> 32));
}

/* Store a length after everything it covers: whoever sees it in shared memory sees the rest too.
 * (Where the four bytes lie across two cache lines a reader may catch half of them; it then finds
 * an entry that is not complete, which is how a reader ends anyway.) */
static inline void publish_u32(uint8_t *at, uint32_t value)
{
#if defined(__GNUC__)
    __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
    store_u32(at, value);
}

/* Load a length before anything it covers: the other side of publish_u32. */
static inline uint32_t load_published_u32(const uint8_t *at)
{
    uint32_t value = load_u32(at);
#if defined(__GNUC__)
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
#endif
    return value;
}

#endif
