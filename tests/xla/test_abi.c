// SPDX-License-Identifier: MIT
/* bindings/xla/ffi_abi.h beside XLA's own header, where jaxlib has brought it. */
#include "unit.h"

#include "ffi_abi.h"

#if __has_include(<xla/ffi/api/c_api.h>)
#include <xla/ffi/api/c_api.h>

#define SAME(ours, member, theirs, theirs_member)                                                 \
	do {                                                                                      \
		assert_int_equal(offsetof(struct ours, member), offsetof(theirs, theirs_member)); \
		assert_int_equal(sizeof(((struct ours *)0)->member),                              \
				 sizeof(((theirs *)0)->theirs_member));                           \
	} while (0)

UNIT(test_structures)
{
	SAME(ffi_extension, type, XLA_FFI_Extension_Base, type);
	SAME(ffi_extension, next, XLA_FFI_Extension_Base, next);
	SAME(ffi_version, major, XLA_FFI_Api_Version, major_version);
	SAME(ffi_version, minor, XLA_FFI_Api_Version, minor_version);
	SAME(ffi_error_args, message, XLA_FFI_Error_Create_Args, message);
	SAME(ffi_error_args, code, XLA_FFI_Error_Create_Args, errc);
	SAME(ffi_buffer, dtype, XLA_FFI_Buffer, dtype);
	SAME(ffi_buffer, data, XLA_FFI_Buffer, data);
	SAME(ffi_buffer, rank, XLA_FFI_Buffer, rank);
	SAME(ffi_buffer, dims, XLA_FFI_Buffer, dims);
	SAME(ffi_text, at, XLA_FFI_ByteSpan, ptr);
	SAME(ffi_text, bytes, XLA_FFI_ByteSpan, len);
	SAME(ffi_scalar, dtype, XLA_FFI_Scalar, dtype);
	SAME(ffi_scalar, value, XLA_FFI_Scalar, value);
	SAME(ffi_buffers, count, XLA_FFI_Args, size);
	SAME(ffi_buffers, types, XLA_FFI_Args, types);
	SAME(ffi_buffers, values, XLA_FFI_Args, args);
	SAME(ffi_buffers, count, XLA_FFI_Rets, size);
	SAME(ffi_buffers, types, XLA_FFI_Rets, types);
	SAME(ffi_buffers, values, XLA_FFI_Rets, rets);
	SAME(ffi_attrs, count, XLA_FFI_Attrs, size);
	SAME(ffi_attrs, types, XLA_FFI_Attrs, types);
	SAME(ffi_attrs, names, XLA_FFI_Attrs, names);
	SAME(ffi_attrs, values, XLA_FFI_Attrs, attrs);
	SAME(ffi_api, version, XLA_FFI_Api, api_version);
	SAME(ffi_api, make_error, XLA_FFI_Api, XLA_FFI_Error_Create);
	SAME(ffi_api, error_message, XLA_FFI_Api, XLA_FFI_Error_GetMessage);
	SAME(ffi_api, error_destroy, XLA_FFI_Api, XLA_FFI_Error_Destroy);
	SAME(ffi_api, add_handler, XLA_FFI_Api, XLA_FFI_Handler_Register);
	SAME(ffi_error_message_args, error, XLA_FFI_Error_GetMessage_Args, error);
	SAME(ffi_error_message_args, message, XLA_FFI_Error_GetMessage_Args, message);
	SAME(ffi_error_destroy_args, error, XLA_FFI_Error_Destroy_Args, error);
	SAME(ffi_handler_args, name, XLA_FFI_Handler_Register_Args, name);
	SAME(ffi_handler_args, platform, XLA_FFI_Handler_Register_Args, platform);
	SAME(ffi_handler_args, instantiate, XLA_FFI_Handler_Register_Args, bundle.instantiate);
	SAME(ffi_handler_args, execute, XLA_FFI_Handler_Register_Args, bundle.execute);
	SAME(ffi_handler_args, traits, XLA_FFI_Handler_Register_Args, traits);
	SAME(ffi_frame, api, XLA_FFI_CallFrame, api);
	SAME(ffi_frame, context, XLA_FFI_CallFrame, ctx);
	SAME(ffi_frame, stage, XLA_FFI_CallFrame, stage);
	SAME(ffi_frame, operands, XLA_FFI_CallFrame, args);
	SAME(ffi_frame, results, XLA_FFI_CallFrame, rets);
	SAME(ffi_frame, attrs, XLA_FFI_CallFrame, attrs);
	SAME(ffi_metadata, version, XLA_FFI_Metadata, api_version);
	SAME(ffi_metadata, traits, XLA_FFI_Metadata, traits);
	SAME(ffi_metadata_extension, metadata, XLA_FFI_Metadata_Extension, metadata);
}

UNIT(test_numbers)
{
	assert_int_equal(FFI_MAJOR, XLA_FFI_API_MAJOR);
	assert_int_equal(FFI_EXTENSION_METADATA, XLA_FFI_Extension_Metadata);
	assert_int_equal(FFI_BUFFER, XLA_FFI_ArgType_BUFFER);
	assert_int_equal(FFI_BUFFER, XLA_FFI_RetType_BUFFER);
	assert_int_equal(FFI_STAGE_EXECUTE, XLA_FFI_ExecutionStage_EXECUTE);
	assert_int_equal(FFI_ATTR_ARRAY, XLA_FFI_AttrType_ARRAY);
	assert_int_equal(FFI_ATTR_DICTIONARY, XLA_FFI_AttrType_DICTIONARY);
	assert_int_equal(FFI_ATTR_SCALAR, XLA_FFI_AttrType_SCALAR);
	assert_int_equal(FFI_ATTR_STRING, XLA_FFI_AttrType_STRING);
	assert_int_equal(FFI_PRED, XLA_FFI_DataType_PRED);
	assert_int_equal(FFI_S64, XLA_FFI_DataType_S64);
	assert_int_equal(FFI_U32, XLA_FFI_DataType_U32);
	assert_int_equal(FFI_CANCELLED, XLA_FFI_Error_Code_CANCELLED);
	assert_int_equal(FFI_INVALID_ARGUMENT, XLA_FFI_Error_Code_INVALID_ARGUMENT);
	assert_int_equal(FFI_DEADLINE_EXCEEDED, XLA_FFI_Error_Code_DEADLINE_EXCEEDED);
	assert_int_equal(FFI_NOT_FOUND, XLA_FFI_Error_Code_NOT_FOUND);
	assert_int_equal(FFI_RESOURCE_EXHAUSTED, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
	assert_int_equal(FFI_FAILED_PRECONDITION, XLA_FFI_Error_Code_FAILED_PRECONDITION);
	assert_int_equal(FFI_UNIMPLEMENTED, XLA_FFI_Error_Code_UNIMPLEMENTED);
	assert_int_equal(FFI_INTERNAL, XLA_FFI_Error_Code_INTERNAL);
	assert_int_equal(FFI_UNAVAILABLE, XLA_FFI_Error_Code_UNAVAILABLE);
	assert_int_equal(FFI_DATA_LOSS, XLA_FFI_Error_Code_DATA_LOSS);
}

UNIT_MAIN("tests", NULL, NULL)
#else
int main(void)
{
	puts("1..1\nok 1 - the ABI beside XLA's header # SKIP there is no jaxlib, which has "
	     "xla/ffi/api/c_api.h");
	return 0;
}
#endif
