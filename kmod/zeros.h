/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pages that belong to a claim: zeros and copies.
 */
#ifndef TMESH_ZEROS_H
#define TMESH_ZEROS_H

#include "tmesh.h"

int tmesh_ioctl_policy(struct tmesh_ucmd *ucmd);
struct page *tmesh_copy_page(struct tmesh_claim *claim, unsigned long index);
void tmesh_copy_fill(struct page *copy, struct page *from);
void tmesh_copies_flush(struct tmesh_claim *claim);
struct page *tmesh_zero_page(struct tmesh_claim *claim, unsigned long index);
void tmesh_zeros_init(struct tmesh_claim *claim);
void tmesh_zeros_free(struct tmesh_claim *claim);

#endif /* TMESH_ZEROS_H */
