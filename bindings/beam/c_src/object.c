/* SPDX-License-Identifier: MIT */
/* Terms of the libraries' counted objects. All kinds have one resource type. */
#include "nif.h"

void object_dtor(ErlNifEnv *env, void *resource)
{
	struct object *object = resource;

	if (object->object)
		garbage_put(env, object->garbage, object->object);
	else
		garbage_free(object->garbage);
	enif_release_resource(object->context);
	pthread_mutex_destroy(&object->lock);
}

bool make_object(ErlNifEnv *env, struct context *context, const struct object_kind *kind,
		 void *made, ERL_NIF_TERM *term, struct tmesh_error *err)
{
	struct object *object = enif_alloc_resource(object_type, sizeof(*object));
	bool good;

	*object = (struct object){
		.kind = kind, .context = context, .garbage = garbage_alloc(kind->unref)};
	enif_keep_resource(context);
	pthread_mutex_init(&object->lock, NULL);
	good = object->garbage;
	if (good) {
		object->object = made;
		*term = enif_make_resource(env, object);
	} else {
		kind->unref(made);
		refuse(err, -ENOMEM, "no memory for %s", kind->name);
	}
	enif_release_resource(object);
	return good;
}

ERL_NIF_TERM make_ok_object(ErlNifEnv *env, struct context *context, const struct object_kind *kind,
			    void *made)
{
	struct tmesh_error err;
	ERL_NIF_TERM term;

	if (!make_object(env, context, kind, made, &term, &err))
		return make_error(env, &err);
	return make_ok(env, term);
}

bool find_object(ErlNifEnv *env, ERL_NIF_TERM term, const struct object_kind *kind,
		 struct object **object, struct tmesh_error *err)
{
	if (enif_get_resource(env, term, object_type, (void **)object) && (*object)->kind == kind)
		return true;
	return refuse(err, -EBADF, "not %s of this VM", kind->name) == 0;
}

void *get_object(ErlNifEnv *env, ERL_NIF_TERM term, const struct object_kind *kind,
		 struct context **context, struct tmesh_error *err)
{
	struct object *object;
	void *taken = NULL;

	if (find_object(env, term, kind, &object, err)) {
		pthread_mutex_lock(&object->lock);
		if (object->object)
			taken = kind->ref(object->object);
		pthread_mutex_unlock(&object->lock);
		if (context)
			*context = object->context;
	}
	if (!taken)
		refuse(err, -EBADF, "%s was closed, or is another VM's", kind->name);
	return taken;
}

ERL_NIF_TERM close_object(ErlNifEnv *env, ERL_NIF_TERM term, const struct object_kind *kind)
{
	struct object *object;
	struct tmesh_error err;
	void *taken;

	if (!find_object(env, term, kind, &object, &err))
		return make_error(env, &err);
	pthread_mutex_lock(&object->lock);
	taken = object->object;
	object->object = NULL;
	pthread_mutex_unlock(&object->lock);
	if (taken)
		kind->unref(taken);
	return atoms.ok;
}
