// SPDX-License-Identifier: MIT
/* Where engines are found: TMESH_ENGINE_PATH, else beside the object that this is in, else where
 * they were installed. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
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
	/* Never closed: engines have threads that do not bear it. */
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

/* The folder of the object that this function is in. */
static bool own_folder(char *path)
{
	char *slash = NULL;
	Dl_info info;

	if (dladdr((void *)check_name, &info) && info.dli_fname && realpath(info.dli_fname, path))
		slash = strrchr(path, '/');
	if (slash)
		*slash = '\0';
	return slash;
}

int engine_plugin_find(const char *name, const struct tmesh_engine_plugin **out,
		       struct tmesh_error *err)
{
	const char *folder = secure_getenv("TMESH_ENGINE_PATH");
	char own[PATH_MAX], path[2 * PATH_MAX];
	const char *below[] = {"", "/tmesh"};
	int rc = check_name(name, err);

	if (rc)
		return rc;
	if (!folder && !own_folder(own))
		return tmesh_fail(err, -EOPNOTSUPP,
				  "where the engines are is not known: set TMESH_ENGINE_PATH to "
				  "their folder");
	for (size_t i = 0; i < (folder ? 1 : 3); i++) {
		if ((size_t)snprintf(path, sizeof(path), "%s%s/tmesh-engine-%s.so",
				     folder  ? folder
				     : i < 2 ? own
					     : TMESH_ENGINE_DIR,
				     i < 2 ? below[i] : "", name) >= sizeof(path))
			return tmesh_fail(
				err, -ENAMETOOLONG,
				"the path of the engines' folder: %s; TMESH_ENGINE_PATH names it",
				strerror(ENAMETOOLONG));
		if (!access(path, F_OK))
			return load(path, out, err);
	}
	return tmesh_fail(err, -EOPNOTSUPP,
			  "no engine \"%s\": there is no tmesh-engine-%s.so in %.100s%s; "
			  "TMESH_ENGINE_PATH names another folder",
			  name, name, folder ? folder : own,
			  folder ? "" : ", its folder tmesh or " TMESH_ENGINE_DIR);
}
