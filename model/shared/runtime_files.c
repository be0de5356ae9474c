// SPDX-License-Identifier: MIT
/* Files that other processes have left in the runtime directory. */
#include "runtime_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

static bool is_of(const struct dirent *entry, const char *prefix)
{
	return strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
}

void model_runtime_files_walk(int dir, const char *prefix, unsigned int most,
			      model_runtime_file_fn *look, void *data)
{
	int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = copy < 0 ? NULL : fdopendir(copy);
	uint64_t count = 0, begin = 0, at = 0;
	struct dirent *entry;

	if (!list) {
		if (copy >= 0)
			close(copy);
		return;
	}
	while ((entry = readdir(list)))
		count += is_of(entry, prefix);
	/* Begin anywhere: then files of dead processes are found although many are alive. */
	if (count > most && !tmesh_random(&begin, sizeof(begin), NULL))
		begin %= count;
	rewinddir(list);
	while (count && (entry = readdir(list))) {
		if (is_of(entry, prefix) && (at++ + count - begin) % count < most)
			look(data, entry->d_name);
	}
	closedir(list);
}
