// SPDX-License-Identifier: MIT
/* The name and the trailer of a memfd region; memfd.h has the format. */
#include "memfd.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define NAME_START "tmesh:1:"
#define DELETED " (deleted)"

static char *put_hex(char *to, uint64_t value, unsigned int at_least)
{
	unsigned int digits = 16;

	while (digits > at_least && value >> 4 * (digits - 1) == 0)
		digits--;
	while (digits--)
		*to++ = "0123456789abcdef"[value >> 4 * digits & 15];
	return to;
}

/* Format without printf(), which takes as long as memfd_create(), and every new region needs a
 * name. */
void tmesh_memfd_name_format(char name[TMESH_MEMFD_NAME], const struct tmesh_memfd_name *parts)
{
	char *to = stpcpy(name, NAME_START);

	to = put_hex(to, parts->id, 16);
	*to++ = ':';
	to = put_hex(to, parts->bytes, 1);
	*to++ = ':';
	strcpy(to, parts->label);
}

/* Parse a name. Any process can give a memfd any name, so the result is only for display. */
bool tmesh_memfd_name_parse(const char *text, struct tmesh_memfd_name *parts)
{
	size_t start = strlen(NAME_START), gone = strlen(DELETED), length;
	uint8_t id[8];

	if (strncmp(text, NAME_START, start))
		return false;
	text += start;
	if (strnlen(text, 17) < 17 || text[16] != ':' || !tmesh_unhex(id, text, sizeof(id)))
		return false;
	parts->id = 0;
	for (size_t i = 0; i < sizeof(id); i++)
		parts->id = parts->id << 8 | id[i];
	text += 17;
	/* strtoull() alone would take a sign and spaces too. */
	length = strspn(text, "0123456789abcdef");
	if (length > 16 || text[length] != ':')
		return false;
	parts->bytes = strtoull(text, NULL, 16);
	if (parts->bytes == 0)
		return false;
	text += length + 1;
	length = strlen(text);
	if (length >= gone && !strcmp(text + length - gone, DELETED))
		length -= gone;
	if (length > TMESH_LABEL_LEN)
		return false;
	memset(parts->label, 0, sizeof(parts->label));
	memcpy(parts->label, text, length);
	return true;
}

bool tmesh_memfd_name_of(int fd, struct tmesh_memfd_name *parts)
{
	static const char start[] = "/memfd:";
	char path[32], name[256];
	ssize_t got;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	got = readlink(path, name, sizeof(name) - 1);
	if (got < 0)
		return false;
	name[got] = '\0';
	return strncmp(name, start, strlen(start)) == 0 &&
	       tmesh_memfd_name_parse(name + strlen(start), parts);
}

uint64_t tmesh_memfd_trailer_bytes(uint32_t kind)
{
	uint64_t page = tmesh_page_bytes();

	if (kind & TMESH_KIND_FOREIGN)
		return 0;
	if (kind & TMESH_KIND_HUGETLB)
		return TMESH_HUGE_BYTES;
	return page > TMESH_TRAILER_BYTES ? page : TMESH_TRAILER_BYTES;
}

uint64_t tmesh_memfd_foreign_id(uint64_t dev, uint64_t ino)
{
	static const uint64_t no_key[2];
	const uint64_t file[2] = {dev, ino};
	uint64_t id = tmesh_siphash(no_key, file, sizeof(file));

	return id ? id : 1;
}

uint64_t tmesh_memfd_page(uint32_t kind, const struct stat *st)
{
	uint64_t block = (uint64_t)st->st_blksize;

	if (!(kind & TMESH_KIND_HUGETLB))
		return tmesh_page_bytes();
	return block > TMESH_HUGE_BYTES ? block : TMESH_HUGE_BYTES;
}

bool tmesh_memfd_is_hugetlb(int fd)
{
	struct statfs fs;

	return fstatfs(fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC;
}

/* Return the time of creation by the monotonic clock; the file has it by the calendar. */
static uint64_t created_ns(int fd)
{
	struct timespec now;
	struct statx stx;
	int64_t age;
	uint64_t mono = tmesh_now_ns();

	if (statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &stx) || !(stx.stx_mask & STATX_BTIME))
		return 0;
	clock_gettime(CLOCK_REALTIME, &now);
	age = ((int64_t)now.tv_sec - stx.stx_btime.tv_sec) * 1000000000 + now.tv_nsec -
	      stx.stx_btime.tv_nsec;
	return age < 0 || (uint64_t)age > mono ? 0 : mono - (uint64_t)age;
}

/* Read the trailer. Any process that can write the file can write it, so its numbers are checked.
 */
static void read_trailer(int fd, uint64_t at, struct tmesh_region_info *info)
{
	struct tmesh_trailer head;
	ssize_t got;

	if (pread(fd, &head, sizeof(head), (off_t)at) != sizeof(head) ||
	    head.magic != TMESH_TRAILER_MAGIC || head.description_bytes > TMESH_DESCRIPTION_LEN ||
	    head.bytes == 0 || head.bytes > at || memchr(head.label, 0, sizeof(head.label)) == NULL)
		return;
	info->id = head.id;
	info->bytes = head.bytes;
	memcpy(info->label, head.label, sizeof(info->label));
	got = pread(fd, info->description, head.description_bytes,
		    (off_t)(at + TMESH_TRAILER_TEXT));
	info->description[got > 0 ? got : 0] = '\0';
}

int tmesh_memfd_describe(int fd, uint32_t kind, struct tmesh_region_info *info)
{
	uint64_t behind = tmesh_memfd_trailer_bytes(kind);
	int seals = tmesh_foreign_seals(fd);
	uint64_t page;
	struct stat st;

	if (seals < 0 || fstat(fd, &st))
		return -errno;
	if ((uint64_t)st.st_size <= behind || info->bytes > (uint64_t)st.st_size - behind)
		return -EPROTO;
	info->size = sizeof(*info);
	info->backend = TMESH_BACKEND_MEMFD;
	info->alloc_bytes = (uint64_t)st.st_size - behind;
	page = tmesh_memfd_page(kind, &st);
	if (kind & TMESH_KIND_FOREIGN)
		info->alloc_bytes = (info->bytes + page - 1) & ~(page - 1);
	if (kind & TMESH_KIND_HUGETLB)
		info->huge_bytes = info->alloc_bytes;
	if (behind)
		read_trailer(fd, info->alloc_bytes, info);
	info->created_ns = created_ns(fd);
	info->mode = st.st_mode & 0777;
	info->uid = st.st_uid;
	info->gid = st.st_gid;
	info->node = -1;
	info->sealed = seals & F_SEAL_WRITE;
	return 0;
}
