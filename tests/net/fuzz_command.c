// SPDX-License-Identifier: MIT
/* Any message to tmesh-net: refused with a reason, or a command whose texts end. */
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include "port/command.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tmesh_error err = {0};
	struct command command;
	int64_t id;

	if (command_read((const char *)data, size, &command, &id, &err)) {
		if (err.code != -EPROTO || !err.message[0] || id < -1)
			abort();
		return 0;
	}
	if (id != command.id || id < 0 || command.type > COMMAND_STATS ||
	    strnlen(command.address, sizeof(command.address)) == sizeof(command.address) ||
	    strnlen(command.token, sizeof(command.token)) == sizeof(command.token) ||
	    strnlen(command.peer, sizeof(command.peer)) == sizeof(command.peer) ||
	    !command.data != (command.type != COMMAND_STORE) ||
	    (command.data && (command.bytes < 1 || command.bytes > TMESH_NET_SMALL_BYTES)) ||
	    (command.type == COMMAND_FETCH && (command.bytes < 1 || command.timeout_ms < 1)))
		abort();
	free(command.data);
	return 0;
}
