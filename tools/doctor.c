// SPDX-License-Identifier: MIT
/* tmeshctl doctor: report whether each feature works on this machine, and if not, why. */
#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "common/kept_mount.h"
#include "doctor_gpu.h"
#include "maturity.h"
#include "tmeshctl.h"

static const struct option_entry options[] = {OPTION_JSON, {NULL}};

static const char *level_text(enum tmesh_cap_level level)
{
	switch (level) {
	case TMESH_CAP_NO:
		return "no";
	case TMESH_CAP_COOPERATIVE:
		return "cooperative";
	case TMESH_CAP_ENFORCED:
		return "enforced";
	}
	return "unknown";
}

/* Read the first line of a small file, without its newline; "" if it cannot be read. */
static void first_line(const char *path, char *line, size_t size)
{
	FILE *from = fopen(path, "re");

	line[0] = '\0';
	if (!from)
		return;
	if (fgets(line, (int)size, from))
		line[strcspn(line, "\n")] = '\0';
	fclose(from);
}

/* Read the word in brackets of "always [madvise] never". */
static void chosen_word(const char *path, char *word, size_t size)
{
	char line[256], *start;

	first_line(path, line, sizeof(line));
	start = strchr(line, '[');
	snprintf(word, size, "%s", start ? start + 1 : "unknown");
	word[strcspn(word, "]")] = '\0';
}

static uint64_t meminfo(const char *name)
{
	FILE *from = fopen("/proc/meminfo", "re");
	uint64_t value = 0;
	char line[256];

	while (from && fgets(line, sizeof(line), from)) {
		if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':')
			value = strtoull(line + strlen(name) + 1, NULL, 10);
	}
	if (from)
		fclose(from);
	return value;
}

struct fact {
	const char *name;
	char value[PATH_MAX];
	const char *advice; /* what to change, or NULL */
};

static void limit_text(int resource, char *text, size_t size)
{
	struct rlimit limit;

	if (getrlimit(resource, &limit))
		snprintf(text, size, "unknown");
	else if (limit.rlim_cur == RLIM_INFINITY)
		snprintf(text, size, "unlimited");
	else
		snprintf(text, size, "%" PRIu64, (uint64_t)limit.rlim_cur);
}

static const char *device_advice(struct fact *fact)
{
	struct stat st;

	if (stat("/dev/tmesh", &st)) {
		snprintf(fact->value, sizeof(fact->value), "missing");
		return "load the module to have the kernel backend: modprobe tmesh";
	}
	snprintf(fact->value, sizeof(fact->value), "mode %04o, uid %u, gid %u", st.st_mode & 07777,
		 st.st_uid, st.st_gid);
	if (access("/dev/tmesh", R_OK | W_OK))
		return "you may not open it: join its group, then log in again";
	return NULL;
}

/* Describe the keeper, which keeps memfd regions without a holder. */
static const char *keeper_advice(struct fact *fact)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = TMESH_BACKEND_MEMFD};
	struct tmesh_keeper_info info = {.size = sizeof(info)};
	char used[16], most[16];
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int rc = tmesh_ctx_open(&opts, &ctx, &err);

	if (!rc) {
		rc = tmesh_keeper_info(ctx, &info, &err);
		tmesh_ctx_unref(ctx);
	}
	if (rc) {
		snprintf(fact->value, sizeof(fact->value), "unknown: %s", err.message);
		return NULL;
	}
	if (!info.pid) {
		snprintf(fact->value, sizeof(fact->value), "none runs");
		return NULL;
	}
	snprintf(fact->value, sizeof(fact->value), "process %d: %u names, %s of %s%s",
		 (int)info.pid, info.names, human_bytes(info.used_bytes, used),
		 human_bytes(info.max_bytes, most),
		 info.pressure ? "" : ", blind to memory pressure");
	return info.survives_kill
		       ? NULL
		       : "kept memory without a holder ends with it: systemctl --user enable --now "
			 "tmesh-keeper";
}

/* Report whether kept memory has paths for other programs (tmesh-mount(8), tmeshfs(5)). */
static const char *files_advice(struct fact *fact)
{
	const char *told = secure_getenv("TMESH_MOUNT");
	char type[TMESH_MOUNT_TYPE_SIZE], way[TMESH_MOUNT_WAY_SIZE] = "";
	int rc = 0;

	told = told && *told ? told : "/run/tmesh";
	tmesh_mount_type(told, type);
	if (!strcmp(type, TMESH_MOUNT_MODULE)) {
		snprintf(fact->value, sizeof(fact->value), "in %.60s, by the module", told);
		return NULL;
	}
	if (!strcmp(type, TMESH_MOUNT_FUSE))
		rc = tmesh_mount_way(told, way);
	if (rc == -ETIMEDOUT) {
		snprintf(fact->value, sizeof(fact->value), "%.60s does not answer", told);
		return "programs that open kept files wait: as root, systemctl restart tmesh-mount";
	}
	if (rc) {
		snprintf(fact->value, sizeof(fact->value), "unknown: cannot ask %.60s: %s", told,
			 strerror(-rc));
		return NULL;
	}
	if (!*way) {
		snprintf(fact->value, sizeof(fact->value), "not shown in %.60s", told);
		return access("/sys/module/tmesh", F_OK)
			       ? "no program opens what is kept by a path; as root: systemctl "
				 "enable --now tmesh-mount"
			       : "no program opens what is kept by a path; as root: tmeshctl mount";
	}
	snprintf(fact->value, sizeof(fact->value), "in %.60s, by %s", told, way);
	return strcmp(way, "passthrough")
		       ? "the page cache has one more copy for all programs; passthrough takes "
			 "libfuse 3.17, Linux 6.9 and root"
		       : NULL;
}

/* Report the confinement that tmesh-engine can give engines on this kernel. It confines a process
 * that tries forbidden calls, and reports the result. */
static const char *engine_advice(struct fact *fact)
{
	int status = check_confinement(fact->value, sizeof(fact->value));

	if (status < 0) {
		snprintf(fact->value, sizeof(fact->value), "not tried: %s",
			 errno == ENOENT ? "tmesh-engine is not installed"
					 : "tmesh-engine cannot be started");
		return NULL;
	}
	return status ? "tmesh-engine refuses to serve engines here, but for --unconfined, with "
			"which they can open every file of their user and make every system call"
		      : NULL;
}

static size_t gather_facts(struct fact *facts)
{
	struct fact *fact = facts;
	struct rlimit files;

	fact->name = "/dev/tmesh";
	fact->advice = device_advice(fact);
	fact++;

	fact->name = "module";
	snprintf(fact->value, sizeof(fact->value), "%s",
		 access("/sys/module/tmesh", F_OK) ? "not loaded" : "loaded");
	fact++;

	fact->name = "shmem_enabled";
	chosen_word("/sys/kernel/mm/transparent_hugepage/shmem_enabled", fact->value,
		    sizeof(fact->value));
	fact++;

	fact->name = "transparent huge pages";
	chosen_word("/sys/kernel/mm/transparent_hugepage/enabled", fact->value,
		    sizeof(fact->value));
	fact++;

	fact->name = "reserved huge pages";
	snprintf(fact->value, sizeof(fact->value), "%" PRIu64 " free of %" PRIu64,
		 meminfo("HugePages_Free"), meminfo("HugePages_Total"));
	fact++;

	fact->name = "locked memory limit";
	limit_text(RLIMIT_MEMLOCK, fact->value, sizeof(fact->value));
	fact++;

	fact->name = "open files limit";
	limit_text(RLIMIT_NOFILE, fact->value, sizeof(fact->value));
	if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur < 4096)
		fact->advice = "each region takes a descriptor: ulimit -n 65536, or keep many "
			       "tensors in one region";
	fact++;

	fact->name = "keeper";
	fact->advice = keeper_advice(fact);
	fact++;

	fact->name = "kept files";
	fact->advice = files_advice(fact);
	fact++;

	fact->name = "engine processes";
	fact->advice = engine_advice(fact);
	fact++;
	return (size_t)(fact - facts);
}

/* Try a hand-over by token: make a region, get its token, open it by the token. */
static int try_hand_over(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .label = "tmeshctl doctor"};
	struct tmesh_region *region, *opened;
	char token[TMESH_TOKEN_SIZE];
	int rc;

	rc = tmesh_region_create(ctx, 1, &opts, &region, err);
	if (rc)
		return rc;
	rc = tmesh_region_token(region, TMESH_READ, token, err);
	if (!rc)
		rc = tmesh_region_open(ctx, token, TMESH_READ, &opened, err);
	if (!rc)
		tmesh_region_unref(opened);
	tmesh_region_unref(region);
	return rc;
}

struct examination {
	const char *name;
	bool works;
	struct tmesh_error err; /* the reason of a failure */
	struct tmesh_ctx *ctx;	/* NULL: it cannot be opened */
	const struct tmesh_cap *caps;
	size_t count;
};

static void examine(enum tmesh_backend backend, struct examination *found)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = backend};

	*found = (struct examination){.name = tmesh_backend_name(backend)};
	if (tmesh_ctx_open(&opts, &found->ctx, &found->err)) {
		found->ctx = NULL;
		return;
	}
	found->works = !try_hand_over(found->ctx, &found->err);
	if (tmesh_caps(found->ctx, &found->caps, &found->count))
		found->count = 0;
}

/* Report the runtime directory. Processes share memfd regions only if theirs is the same. */
static size_t runtime_dir_fact(const struct examination *memfd, struct fact *fact)
{
	static struct tmesh_error err;
	char link[32];
	ssize_t length;
	int dir;

	if (!memfd->ctx)
		return 0;
	fact->name = "runtime directory";
	if (tmesh_ctx_runtime_dir(memfd->ctx, &dir, &err)) {
		snprintf(fact->value, sizeof(fact->value), "cannot be used");
		fact->advice = err.message;
		return 1;
	}
	snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
	length = readlink(link, fact->value, sizeof(fact->value) - 1);
	if (length < 0)
		snprintf(fact->value, sizeof(fact->value), "cannot be read");
	close(dir);
	return 1;
}

static json_t *examination_json(const struct examination *found)
{
	json_t *caps = json_array();

	for (size_t i = 0; i < found->count; i++)
		json_array_append_new(caps,
				      json_pack("{s:s, s:s, s:s}", "name", found->caps[i].name,
						"level", level_text(found->caps[i].level), "reason",
						found->caps[i].reason));
	return json_pack("{s:b, s:o, s:o}", "works", found->works, "reason",
			 found->works ? json_null() : json_text(found->err.message), "capabilities",
			 caps);
}

static json_t *maturity_json(void)
{
	json_t *all = json_object();

	for (size_t i = 0; i < sizeof(maturity) / sizeof(maturity[0]); i++)
		json_object_set_new(all, maturity[i].header, json_string(maturity[i].level));
	return all;
}

/* Print the headers that are not stable. */
static void print_maturity(void)
{
	struct table table = {.columns = 2};

	printf("\nmaturity\n");
	for (size_t i = 0; i < sizeof(maturity) / sizeof(maturity[0]); i++) {
		if (!strcmp(maturity[i].level, "stable"))
			continue;
		table_addf(&table, "  tmesh/%s.h", maturity[i].header);
		table_add(&table, maturity[i].level);
	}
	table_add(&table, "  all others");
	table_add(&table, "stable");
	table_print(&table);
}

static int print_all_json(const struct examination *found, size_t backends,
			  const struct fact *facts, size_t count, const struct gpu_report *gpus,
			  json_t *engines)
{
	json_t *answer = json_object(), *machine = json_object(), *list = json_object();

	for (size_t i = 0; i < backends; i++)
		json_object_set_new(list, found[i].name, examination_json(&found[i]));
	for (size_t i = 0; i < count; i++)
		json_object_set_new(
			machine, facts[i].name,
			json_pack("{s:o, s:o}", "value", json_text(facts[i].value), "advice",
				  facts[i].advice ? json_text(facts[i].advice) : json_null()));
	json_object_set_new(answer, "version", json_string(tmesh_version()));
	json_object_set_new(answer, "machine", machine);
	json_object_set_new(answer, "backends", list);
	json_object_set_new(answer, "gpus", gpus_json(gpus));
	json_object_set(answer, "engines", engines);
	json_object_set_new(answer, "maturity", maturity_json());
	return print_json(answer);
}

static void print_all(const struct examination *found, size_t backends, const struct fact *facts,
		      size_t count)
{
	struct table table = {.columns = 3};

	printf("tmesh %s\n\nmachine\n", tmesh_version());
	for (size_t i = 0; i < count; i++) {
		table_addf(&table, "  %s", facts[i].name);
		table_add(&table, facts[i].value);
		table_add(&table, facts[i].advice ? facts[i].advice : "");
	}
	table_print(&table);
	for (size_t i = 0; i < backends; i++) {
		char *reason = escaped(found[i].err.message);

		if (found[i].works)
			printf("\n%s backend: works\n", found[i].name);
		else
			printf("\n%s backend: does not work: %s\n", found[i].name, reason);
		free(reason);
		for (size_t j = 0; j < found[i].count; j++) {
			table_addf(&table, "  %s", found[i].caps[j].name);
			table_add(&table, level_text(found[i].caps[j].level));
			table_add(&table, found[i].caps[j].reason);
		}
		table_print(&table);
	}
}

static int run_verb_doctor(const struct verb *verb, int argc, char **argv)
{
	static const enum tmesh_backend backends[] = {TMESH_BACKEND_KERNEL, TMESH_BACKEND_MEMFD};
	static struct gpu_report gpus;
	static struct fact facts[16];
	struct examination found[2];
	json_t *engines;
	bool json = false, works = false;
	size_t count;
	int status = STATUS_OK;

	while (verb_option(verb, argc, argv) != -1)
		json = true;
	verb_expect_words(verb, argc, 0, 0);

	count = gather_facts(facts);
	for (int i = 0; i < 2; i++) {
		examine(backends[i], &found[i]);
		works |= found[i].works;
	}
	count += runtime_dir_fact(&found[1], &facts[count]);
	examine_gpus(&gpus);
	engines = examine_engines();
	if (json) {
		status = print_all_json(found, 2, facts, count, &gpus, engines);
	} else {
		print_all(found, 2, facts, count);
		print_gpus(&gpus);
		print_engines(engines);
		print_maturity();
	}
	json_decref(engines);
	for (int i = 0; i < 2; i++)
		tmesh_ctx_unref(found[i].ctx);
	return works ? status : STATUS_FAILED;
}

const struct verb verb_doctor = {"doctor", "",
				 "check this machine, and give the reason for each \"no\"", options,
				 run_verb_doctor};
