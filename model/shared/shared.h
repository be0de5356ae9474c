/* SPDX-License-Identifier: MIT */
/* Headers that the files of slots, logs and pages use. */
#ifndef MODEL_SHARED_H
#define MODEL_SHARED_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "common/clock.h"
#include "common/error.h"
#include "common/hex.h"
#include "common/page.h"
#include "common/random.h"
#include "common/siphash.h"
#include "common/sized.h"

#endif /* MODEL_SHARED_H */
