// SPDX-License-Identifier: MIT
/* tmeshctl devices --measure and --costs: what this machine's devices and engines take. */
#include "devices_costs.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* An engine in a process of its own, as long as its standard input is open. */
struct server {
	char name[40];
	pid_t pid;
	int input;
};

/* Beside this program, or where PATH has it. */
static void engine_program(char *path, size_t size)
{
	const char *given = getenv("TMESH_ENGINE_PROGRAM");
	ssize_t length = readlink("/proc/self/exe", path, size - 16);
	char *name;

	if (given && *given) {
		snprintf(path, size, "%s", given);
		return;
	}
	path[length > 0 ? length : 0] = '\0';
	name = strrchr(path, '/');
	strcpy(name ? name + 1 : path, "tmesh-engine");
	if (access(path, X_OK))
		strcpy(path, "tmesh-engine");
}

static void end_server(struct server *server)
{
	close(server->input);
	while (waitpid(server->pid, NULL, 0) < 0 && errno == EINTR)
		;
}

/* false: it did not start. What it has to say of that it says on the standard error itself. */
static bool start_server(struct server *server, const struct tmesh_devices_engine *engine,
			 const char *folder, unsigned int number)
{
	char program[4096], what[64], models[64], library[300], line[80] = "", want[64];
	int in[2], out[2];
	FILE *answer;

	engine_program(program, sizeof(program));
	snprintf(server->name, sizeof(server->name), "costs-%d-%u", (int)getpid(), number);
	snprintf(what, sizeof(what), "--engine=%s", engine->name);
	snprintf(models, sizeof(models), "--models=%s", folder);
	snprintf(library, sizeof(library), "--library=%s", engine->library);
	snprintf(want, sizeof(want), "ready %s\n", server->name);
	if (pipe2(in, O_CLOEXEC))
		return false;
	if (pipe2(out, O_CLOEXEC)) {
		close(in[0]);
		close(in[1]);
		return false;
	}
	server->pid = fork();
	if (!server->pid) {
		dup2(in[0], STDIN_FILENO);
		dup2(out[1], STDOUT_FILENO);
		execlp(program, "tmesh-engine", "--with-input", what, models,
		       *engine->library == '/' ? library : "--threads=1", "--", server->name,
		       (char *)NULL);
		fprintf(stderr, "tmeshctl: devices: %s: %s\n", program, strerror(errno));
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	server->input = in[1];
	answer = fdopen(out[0], "r");
	if (!answer)
		close(out[0]);
	if (answer) {
		if (!fgets(line, sizeof(line), answer))
			*line = '\0';
		fclose(answer);
	}
	if (server->pid > 0 && !strcmp(line, want))
		return true;
	if (server->pid > 0)
		end_server(server);
	else
		close(server->input);
	return false;
}

static bool measurable(const struct tmesh_devices_engine *engine)
{
	return !*engine->reason &&
	       (!strcmp(engine->reads, "graph") || !strcmp(engine->reads, "onnx"));
}

static const char *seconds_text(double seconds, char *text)
{
	if (!(seconds > 0))
		strcpy(text, "-");
	else if (seconds < 1e-6)
		snprintf(text, 24, "%.1f ns", seconds * 1e9);
	else
		snprintf(text, 24, "%.1f us", seconds * 1e6);
	return text;
}

static void print_links(const struct tmesh_devices *devices, const struct tmesh_costs *costs)
{
	struct table table = {.columns = 4};

	table_add(&table, "FROM");
	table_add(&table, "TO");
	table_add(&table, "BANDWIDTH");
	table_add(&table, "LATENCY");
	for (size_t from = 0; from < tmesh_devices_count(devices); from++)
		for (size_t to = 0; to < tmesh_devices_count(devices); to++) {
			struct tmesh_devices_device a = {.size = sizeof(a)},
						    b = {.size = sizeof(b)};
			struct tmesh_placement_link link;
			char text[24];

			if (tmesh_devices_device(devices, from, &a, NULL) ||
			    tmesh_devices_device(devices, to, &b, NULL) ||
			    tmesh_costs_link(costs, from, to, &link, NULL))
				continue;
			table_add(&table, a.id);
			table_add(&table, b.id);
			if (link.bandwidth > 0)
				table_addf(&table, "%s/s",
					   human_bytes((uint64_t)link.bandwidth, text));
			else
				table_add(&table, "-");
			table_add(&table, seconds_text(link.latency, text));
		}
	table_print(&table);
}

static void print_engines(const struct tmesh_devices *devices, const struct tmesh_costs *costs)
{
	struct table table = {.columns = 4 + TMESH_COSTS_RATES};
	bool any = false;

	for (size_t i = 0; i < tmesh_devices_engines(devices); i++) {
		struct tmesh_devices_engine engine = {.size = sizeof(engine)};
		struct tmesh_costs_engine cost = {.size = sizeof(cost)};
		char text[24];

		if (tmesh_devices_engine(devices, i, &engine, NULL) ||
		    tmesh_costs_engine(costs, i, &cost, NULL) || !(cost.launch > 0))
			continue;
		if (!any) {
			table_add(&table, "ENGINE");
			table_add(&table, "LAUNCH");
			table_add(&table, "BY PROCESS");
			table_add(&table, "NODE");
			for (int n = 0; n < TMESH_COSTS_RATES; n++)
				table_addf(&table, "%ux%ux%u", cost.rates[n].rows,
					   cost.rates[n].inner, cost.rates[n].columns);
		}
		any = true;
		table_add(&table, engine.name);
		table_add(&table, seconds_text(cost.launch, text));
		table_add(&table, seconds_text(cost.launch_served, text));
		table_add(&table, seconds_text(cost.node, text));
		for (int n = 0; n < TMESH_COSTS_RATES; n++)
			table_addf(&table, "%.2f GFLOP/s", cost.rates[n].flops / 1e9);
	}
	if (any) {
		putchar('\n');
		table_print(&table);
	} else {
		printf("\nno engine was measured\n");
	}
}

static int print_costs(const struct tmesh_devices *devices, const struct tmesh_costs *costs,
		       bool json)
{
	char *text = tmesh_costs_to_json(costs), size[16];
	json_t *whole = text ? json_loads(text, 0, NULL) : NULL;
	json_t *how = json_object_get(whole, "how");
	json_t *load = json_object_get(how, "load");

	free(text);
	if (json)
		return print_json(whole);
	print_links(devices, costs);
	print_engines(devices, costs);
	printf("\nmedians of %d, copies of %s, one thread",
	       (int)json_integer_value(json_object_get(how, "samples")),
	       human_bytes((uint64_t)json_integer_value(json_object_get(how, "bytes")), size));
	if (json_is_number(load))
		printf(", load %.2f", json_number_value(load));
	putchar('\n');
	json_decref(whole);
	return STATUS_OK;
}

int show_costs(struct tmesh_devices *devices, bool json)
{
	struct tmesh_costs *costs;
	struct tmesh_error err;
	int status;

	if (tmesh_costs_read(devices, NULL, &costs, &err))
		return complain("devices", &err);
	status = print_costs(devices, costs, json);
	tmesh_costs_unref(costs);
	return status;
}

static int measure(struct tmesh_devices *devices, const char *folder, struct tmesh_costs **out)
{
	struct tmesh_costs_served served[TMESH_DEVICES_MAX_ENGINES];
	struct server servers[TMESH_DEVICES_MAX_ENGINES];
	struct tmesh_devices_engine engines[TMESH_DEVICES_MAX_ENGINES];
	struct tmesh_costs_opts opts = {.size = sizeof(opts), .served = served};
	struct tmesh_ctx *ctx;
	struct tmesh_error err;
	int rc, status = open_ctx(TMESH_BACKEND_AUTO, &ctx);

	if (status)
		return status;
	for (size_t i = 0; i < tmesh_devices_engines(devices); i++) {
		struct tmesh_devices_engine *engine = &engines[opts.served_count];
		struct server *server = &servers[opts.served_count];

		engine->size = sizeof(*engine);
		if (tmesh_devices_engine(devices, i, engine, NULL) || !measurable(engine))
			continue;
		if (start_server(server, engine, folder, (unsigned int)i))
			served[opts.served_count++] = (struct tmesh_costs_served){
				.engine = engine->name, .name = server->name, .folder = folder};
		else
			fprintf(stderr,
				"tmeshctl: devices: tmesh-engine does not serve %s: not measured "
				"by process\n",
				engine->name);
	}
	rc = tmesh_costs_measure(ctx, devices, &opts, out, &err);
	for (size_t i = 0; i < opts.served_count; i++)
		end_server(&servers[i]);
	tmesh_ctx_unref(ctx);
	return rc ? complain("devices", &err) : STATUS_OK;
}

int measure_costs(struct tmesh_devices *devices, bool json)
{
	char folder[] = "/tmp/tmesh-costs-XXXXXX";
	struct tmesh_costs *costs;
	struct tmesh_error err;
	int status;

	if (!mkdtemp(folder))
		return complain_errno(folder);
	status = measure(devices, folder, &costs);
	rmdir(folder);
	if (status)
		return status;
	if (tmesh_costs_write(costs, NULL, &err))
		status = complain("devices", &err);
	else
		status = print_costs(devices, costs, json);
	tmesh_costs_unref(costs);
	return status;
}
