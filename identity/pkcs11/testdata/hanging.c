/* A PKCS#11 module that hands all on to the module REAL, but begins no signature
 * as long as the file WHILE is there: a token that lets a call hang. */
#include <dlfcn.h>
#include <unistd.h>

#define CK_PTR *
#define CK_DECLARE_FUNCTION(returnType, name) returnType name
#define CK_DECLARE_FUNCTION_POINTER(returnType, name) returnType(*name)
#define CK_CALLBACK_FUNCTION(returnType, name) returnType(*name)
#define NULL_PTR 0
#include "pkcs11.h"

static CK_FUNCTION_LIST list;
static CK_C_SignInit sign_init;

static CK_RV hanging_sign_init(CK_SESSION_HANDLE session, CK_MECHANISM_PTR mechanism, CK_OBJECT_HANDLE key) {
  while (access(WHILE, F_OK) == 0) usleep(10000);
  return sign_init(session, mechanism, key);
}

CK_RV C_GetFunctionList(CK_FUNCTION_LIST_PTR_PTR out) {
  void *real = dlopen(REAL, RTLD_NOW | RTLD_LOCAL);
  CK_C_GetFunctionList get = real ? (CK_C_GetFunctionList)dlsym(real, "C_GetFunctionList") : 0;
  CK_FUNCTION_LIST_PTR from;
  if (!get || get(&from) != CKR_OK) return CKR_GENERAL_ERROR;
  list = *from;
  sign_init = list.C_SignInit;
  list.C_SignInit = hanging_sign_init;
  *out = &list;
  return CKR_OK;
}
