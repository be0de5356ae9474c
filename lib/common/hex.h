/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_HEX_H
#define TMESH_COMMON_HEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Write @count bytes as twice as many digits and a terminating zero. */
void tmesh_hex(char *text, const uint8_t *bytes, size_t count);
/* Read lower-case digits back; false if there are others. */
bool tmesh_unhex(uint8_t *bytes, const char *text, size_t count);

#endif /* TMESH_COMMON_HEX_H */
