// SPDX-License-Identifier: MIT
/* Find engines: in TMESH_ENGINE_PATH if it is set. Else beside this object, in lib/ of its tree,
 * and in the folder where engines were installed. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_internal.h"

static int check_name(const char *name, struct tmesh_error *err)
{
	size_t length = name ? strlen(name) : 0;

	if (!length || length > ENGINE_NAME_LEN ||
	    strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != length)
		return tmesh_fail(err, -EINVAL,
				  "an engine's name is of 1 to %d small letters, digits and "
				  "hyphens, as \"onnx\"",
				  ENGINE_NAME_LEN);
	return 0;
}

static int load(const char *path, const struct tmesh_engine_plugin **out, struct tmesh_error *err)
{
	/* Never closed: engines have threads that would crash. */
	void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	const struct tmesh_engine_plugin *plugin;

	if (!object)
		return tmesh_fail(err, -EOPNOTSUPP, "the engine's plug-in cannot be loaded: %s",
				  dlerror());
	plugin = dlsym(object, "tmesh_engine_plugin");
	if (!plugin || plugin->abi != TMESH_ENGINE_PLUGIN_ABI) {
		dlclose(object);
		return tmesh_fail(err, -EPROTO,
				  "%s is not an engine of this version of tmesh: install both from "
				  "one release",
				  path);
	}
	*out = plugin;
	return 0;
}

/* Return the folder of the object that contains this function. For a program the loader knows only
 * the name that it was called by, which need not be a path. */
static bool own_folder(char *path)
{
	struct link_map *object;
	char *slash = NULL;
	Dl_info info;

	if (dladdr1((void *)check_name, &info, (void **)&object, RTLD_DL_LINKMAP) &&
	    realpath(*object->l_name ? object->l_name : "/proc/self/exe", path))
		slash = strrchr(path, '/');
	if (slash)
		*slash = '\0';
	return slash;
}

bool engine_plugin_folders(bool (*each)(const char *folder, void *data), void *data)
{
	/* The folders of a build, of installed libraries, and of a relocated tree, seen from its
	 * bin/. */
	static const char *const places[] = {"", "/tmesh", "/../lib/tmesh"};
	const char *given = secure_getenv("TMESH_ENGINE_PATH");
	char own[PATH_MAX], folder[PATH_MAX + 16];

	if (given)
		return each(given, data);
	for (size_t i = 0; own_folder(own) && i < sizeof(places) / sizeof(*places); i++) {
		snprintf(folder, sizeof(folder), "%s%s", own, places[i]);
		if (each(folder, data))
			return true;
	}
	return each(TMESH_ENGINE_DIR, data);
}

struct search {
	const char *name;
	char path[2 * PATH_MAX];
};

static bool has(const char *folder, void *data)
{
	struct search *search = data;
	int length = snprintf(search->path, sizeof(search->path), "%s/tmesh-engine-%s.so", folder,
			      search->name);

	return (size_t)length < sizeof(search->path) && !access(search->path, F_OK);
}

int engine_plugin_find(const char *name, const struct tmesh_engine_plugin **out,
		       struct tmesh_error *err)
{
	const char *given = secure_getenv("TMESH_ENGINE_PATH");
	struct search search = {.name = name};
	char own[PATH_MAX];
	int rc = check_name(name, err);

	if (rc)
		return rc;
	if (engine_plugin_folders(has, &search))
		return load(search.path, out, err);
	if (!given && !own_folder(own))
		snprintf(own, sizeof(own), "the program's folder");
	return tmesh_fail(err, -EOPNOTSUPP,
			  "no engine \"%s\": there is no tmesh-engine-%s.so in %.100s%s; "
			  "TMESH_ENGINE_PATH names another folder",
			  name, name, given ? given : own,
			  given ? "" : ", its folder tmesh or " TMESH_ENGINE_DIR);
}

struct names {
	void (*each)(const char *name, void *data);
	void *data;
};

static bool names_in(const char *folder, void *data)
{
	const struct names *names = data;
	struct dirent **found;
	int count = scandir(folder, &found, NULL, alphasort);

	for (int i = 0; i < count; i++) {
		char name[ENGINE_NAME_LEN + 1];
		int end = 0;

		if (sscanf(found[i]->d_name, "tmesh-engine-%32[a-z0-9-].so%n", name, &end) == 1 &&
		    end && !found[i]->d_name[end])
			names->each(name, names->data);
		free(found[i]);
	}
	if (count >= 0)
		free(found);
	return false;
}

void engine_plugin_names(void (*each)(const char *name, void *data), void *data)
{
	struct names names = {.each = each, .data = data};

	engine_plugin_folders(names_in, &names);
	/* Always name these two, so that a missing one is reported. */
	each("ggml", data);
	each("onnx", data);
}
