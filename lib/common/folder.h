/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_FOLDER_H
#define TMESH_COMMON_FOLDER_H

#include <sys/types.h>

#define TMESH_NO_OWNER ((uid_t)-1)

/*
 * Make @path, a folder for this user alone, unless it exists. A folder of root's in another user's
 * would lock that user out of it, so nothing is made there: @owner is then that user, and
 * TMESH_NO_OWNER otherwise. A folder of root's, or a sticky one that all users may write to (/tmp),
 * may hold folders of others.
 *
 * Return: 0, -EACCES (another user's folder), or a negative errno of mkdir().
 */
int tmesh_make_folder(const char *path, uid_t *owner);

#endif /* TMESH_COMMON_FOLDER_H */
